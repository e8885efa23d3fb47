/* top_screen.c: see top_draw.h. Uses top_draw.c and ncurses.
 *
 * One loop waits for a key, for the answer of a process, and for the next refresh. */
#define _GNU_SOURCE
#define NCURSES_WIDECHAR 1
#include "defrag/tool/live/top_draw.h"

#include <curses.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/system/os.h"

enum { PATIENCE_MS = 300, PAUSE_MS = 1000, INTERVALS = 6, CTRL_L = 'L' - 64 };
static const unsigned intervals_ms[INTERVALS] = {200, 500, 1000, 2000, 5000, 10000};

static volatile sig_atomic_t ended_by;

static void end_by(int number)
{
    ended_by = number;
}

/* ---- Colours ------------------------------------------------------------------------------------------- */

/* The nearest of a terminal's 256 colours: a cube with 6 levels per side. */
static short nearest_of_256(uint32_t colour)
{
    int number = 16;
    for (unsigned shift = 16, weight = 36; weight > 0; shift -= 8, weight /= 6) {
        unsigned level = colour >> shift & 255;
        number += (int)(weight * (level < 48 ? 0 : level < 115 ? 1 : (level - 35) / 40));
        if (shift == 0)
            break;
    }
    return (short)number;
}

/* The nearest of the eight colours: each of red, green and blue is on or off. */
static short nearest_of_8(uint32_t colour)
{
    unsigned red = colour >> 16, green = colour >> 8 & 255, blue = colour & 255;
    unsigned most = red > green ? red : green;
    unsigned limit = (most > blue ? most : blue) * 3 / 4;
    return (short)((red > limit ? 1 : 0) | (green > limit ? 2 : 0) | (blue > limit ? 4 : 0));
}

/* Prepares pairs of black letters on coloured backgrounds. False: the terminal has no colours, or NO_COLOR is
 * set. */
static bool make_colours(void)
{
    const char *no_colour = getenv("NO_COLOR");
    if ((no_colour && *no_colour) || !has_colors() || start_color() == ERR || COLOR_PAIRS <= ZR_TOP_COLOURS ||
        COLORS < 8)
        return false;
    use_default_colors();
    /* NOLINTNEXTLINE(bugprone-too-small-loop-variable): curses numbers pairs in a short */
    for (short pair = 1; pair < ZR_TOP_COLOURS; pair++) {
        uint32_t colour = pair >= ZR_TOP_TAGS       ? zr_map_colour(ZR_MAP_LIVE, (unsigned)pair - ZR_TOP_TAGS)
                          : pair == ZR_TOP_PENDING  ? zr_map_colour(ZR_MAP_PENDING, 0)
                          : pair == ZR_TOP_STRANDED ? 0xd62728
                          : pair == ZR_TOP_FREE     ? zr_map_colour(ZR_MAP_FREE, 0)
                                                    : 0xa6a6a6;
        short behind = COLORS >= 256 ? nearest_of_256(colour) : nearest_of_8(colour);
        init_pair(pair, behind == COLOR_BLACK ? COLOR_WHITE : COLOR_BLACK, behind);
    }
    return true;
}

/* ---- Drawing ------------------------------------------------------------------------------------------- */

static void show(struct zr_top_grid *grid, const struct zr_top *top, const struct zr_top_view *view,
                 bool colours)
{
    grid->columns = COLS < ZR_TOP_COLUMNS_MAX ? (unsigned)COLS : ZR_TOP_COLUMNS_MAX;
    grid->rows = LINES < ZR_TOP_ROWS_MAX ? (unsigned)LINES : ZR_TOP_ROWS_MAX;
    zr_top_draw(grid, top, view);
    erase();
    for (unsigned row = 0; row < grid->rows; row++)
        for (unsigned column = 0; column < grid->columns; column++) {
            const struct zr_top_cell *cell = &grid->cells[row][column];
            const wchar_t letters[2] = {cell->letter, L'\0'};
            attr_t look = (cell->look & ZR_TOP_BOLD ? A_BOLD : 0) | (cell->look & ZR_TOP_DIM ? A_DIM : 0) |
                          (cell->look & ZR_TOP_REVERSE ? A_REVERSE : 0);
            cchar_t letter;
            if (setcchar(&letter, letters, look, colours ? (short)cell->colour : 0, NULL) == OK)
                mvadd_wch((int)row, (int)column, &letter);
        }
    refresh();
}

/* ---- Keys ---------------------------------------------------------------------------------------------- */

static void step_process(const struct zr_top *top, struct zr_top_view *view, int by)
{
    unsigned indices[ZR_TOP_PROCESSES];
    const struct zr_top_process *chosen = zr_top_chosen(top, view);
    zr_top_arrange(top, view, indices);
    for (int i = 0; i < (int)top->processes_count; i++) {
        if (&top->processes[indices[i]] != chosen)
            continue;
        int next = i + by < 0 ? 0 : i + by;
        next = next < (int)top->processes_count ? next : (int)top->processes_count - 1;
        view->arena = next == i ? view->arena : ZR_TOP_ALL;
        view->pid = top->processes[indices[next]].pid;
        return;
    }
}

static void step_arena(const struct zr_top *top, struct zr_top_view *view)
{
    const struct zr_top_process *chosen = zr_top_chosen(top, view);
    int count = chosen ? (int)chosen->live.arenas_count : 0;
    view->arena = view->arena + 1 < count ? view->arena + 1 : ZR_TOP_ALL;
}

static void step_interval(struct zr_top_view *view, bool slower)
{
    if (slower) {
        for (unsigned i = 0; i < INTERVALS; i++)
            if (intervals_ms[i] > view->interval_ms) {
                view->interval_ms = intervals_ms[i];
                return;
            }
    } else {
        for (unsigned i = INTERVALS; i-- > 0;)
            if (intervals_ms[i] < view->interval_ms) {
                view->interval_ms = intervals_ms[i];
                return;
            }
    }
}

/* Handles a key. False: the user quits. */
static bool handle_key(struct zr_top *top, struct zr_top_view *view, int key)
{
    if (view->help && key != 'q' && key != KEY_RESIZE) {
        view->help = false;
        return true;
    }
    switch (key) {
    case 'q':
        return false;
    case KEY_UP:
    case 'k':
        step_process(top, view, -1);
        break;
    case KEY_DOWN:
    case 'j':
        step_process(top, view, 1);
        break;
    case '\t':
    case 'a':
        step_arena(top, view);
        break;
    case 's':
        view->order = (view->order + 1) % ZR_TOP_ORDERS;
        break;
    case 'p':
    case ' ':
        view->paused = !view->paused;
        break;
    case '+':
    case '=':
        step_interval(view, false);
        break;
    case '-':
        step_interval(view, true);
        break;
    case 'm':
        view->no_look = !view->no_look;
        break;
    case 'x':
        zr_top_clear_gone(top);
        break;
    case '?':
    case 'h':
        view->help = true;
        break;
    case 'l':
    case CTRL_L:
        clearok(curscr, TRUE);
        break;
    default:
        break;
    }
    return true;
}

/* Handles all pending keys. False: the loop ends. */
static bool take_keys(struct zr_top *top, struct zr_top_view *view, short events)
{
    int key;
    bool any = false;
    while ((key = getch()) != ERR) {
        any = true;
        if (!handle_key(top, view, key))
            return false;
    }
    /* Readable without data: the terminal closed. */
    return any || !(events & (POLLHUP | POLLERR | POLLNVAL | POLLIN));
}

/* ---- The loop ------------------------------------------------------------------------------------------ */

/* Waits for the first event; false: the loop ends. */
static bool await(struct zr_top *top, struct zr_top_view *view, uint64_t next_ns)
{
    struct pollfd fds[2] = {{.fd = STDIN_FILENO, .events = POLLIN},
                            {.fd = zr_top_look_waits(top), .events = POLLIN}};
    uint64_t now_ns = zr_os_now_ns();
    int wait_ms = now_ns < next_ns ? (int)((next_ns - now_ns) / 1000000) + 1 : 0;
    int ready = poll(fds, 2, view->paused ? PAUSE_MS : wait_ms); /* a signal may arrive just before poll() */
    if (ended_by)
        return false;
    if (ready > 0 && fds[1].revents)
        zr_top_look_take(top);
    return take_keys(top, view, ready > 0 ? fds[0].revents : 0);
}

static void run(struct zr_top *top, struct zr_top_view *view, bool colours)
{
    static struct zr_top_grid grid;
    uint64_t next_ns = zr_os_now_ns();
    for (;;) {
        const struct zr_top_process *chosen;
        if (!view->paused && zr_os_now_ns() >= next_ns) {
            zr_top_refresh(top, PATIENCE_MS);
            next_ns = zr_os_now_ns() + (uint64_t)view->interval_ms * 1000000;
        }
        chosen = zr_top_chosen(top, view);
        if (chosen && view->pid == 0)
            view->pid = chosen->pid;
        zr_top_look_take(top);
        if (chosen && !view->no_look && !view->paused)
            zr_top_look_ask(top, chosen, view->arena);
        show(&grid, top, view, colours);
        if (!await(top, view, next_ns))
            return;
        uint64_t latest_ns = zr_os_now_ns() + (uint64_t)view->interval_ms * 1000000;
        next_ns = next_ns < latest_ns ? next_ns : latest_ns; /* a shorter interval takes effect at once */
    }
}

zr_result zr_top_screen(struct zr_top *top, struct zr_top_view *view)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
    const char *name = getenv("TERM");
    struct sigaction action = {.sa_handler = end_by};
    SCREEN *screen = newterm(NULL, stdout, stdin);
    if (!screen)
        return zr_fail(ZR_ERR_UNAVAILABLE,
                       "top: the terminal '%.40s' is unknown (TERM); zr top --once prints one picture",
                       name ? name : "");
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        sigaction(signals[i], &action, NULL);
    cbreak();
    noecho();
    nonl();
    keypad(stdscr, TRUE);
    nodelay(stdscr, TRUE);
    set_escdelay(50);
    curs_set(0);
    run(top, view, make_colours());
    endwin();
    delscreen(screen);
    if (ended_by) {
        zr_top_end(top);
        signal(ended_by, SIG_DFL);
        raise(ended_by);
    }
    return ZR_OK;
}
