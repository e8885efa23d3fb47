/* chart.c: draws the mean of the values of each column, joined by vertical strokes, on a grid of dots. */

#include <math.h>
#include <string.h>

#include "zero/train/report/number.h"

enum { MAX_COLUMNS = 100, MAX_ROWS = 16, AXIS_COLUMNS = 10 };

struct grid {
    unsigned columns, rows;                     /* characters */
    unsigned wide, high;                        /* dots of a character: 2 x 4 or 1 x 1 */
    unsigned char cells[MAX_ROWS][MAX_COLUMNS]; /* a bit for each dot */
};

/* Bits of a braille character by column and row of the dot. */
static const unsigned char braille[2][4] = {{0x01, 0x02, 0x04, 0x40}, {0x08, 0x10, 0x20, 0x80}};

static void set_dot(struct grid *grid, unsigned x, unsigned y)
{
    unsigned char bit = grid->wide == 2 ? braille[x % 2][y % 4] : 1;
    grid->cells[y / grid->high][x / grid->wide] |= bit;
}

/* The mean of the values in dot column x; NaN if there are none. */
static double column_value(const struct zr_chart *chart, unsigned x, unsigned dots)
{
    size_t from = (size_t)((double)x * (double)chart->count / dots);
    size_t to = (size_t)((double)(x + 1) * (double)chart->count / dots);
    double sum = 0;
    size_t count = 0;

    if (to <= from)
        to = from + 1;
    for (size_t i = from; i < to && i < chart->count; i++)
        if (isfinite(chart->values[i])) {
            sum += chart->values[i];
            count++;
        }
    return count ? sum / (double)count : NAN;
}

struct scale {
    double min, max;
};

static struct scale find_scale(const struct zr_chart *chart, unsigned dots)
{
    struct scale scale = {INFINITY, -INFINITY};
    for (unsigned x = 0; x < dots; x++) {
        double value = column_value(chart, x, dots);
        if (value < scale.min)
            scale.min = value;
        if (value > scale.max)
            scale.max = value;
    }
    return scale;
}

static void plot(struct grid *grid, const struct zr_chart *chart, const struct scale *scale)
{
    unsigned dots = grid->columns * grid->wide, last_y = 0;
    double span = scale->max > scale->min ? scale->max - scale->min : 1;
    bool joined = false;

    for (unsigned x = 0; x < dots; x++) {
        double value = column_value(chart, x, dots);
        if (!isfinite(value)) {
            joined = false;
            continue;
        }
        unsigned y = (unsigned)((scale->max - value) / span * (grid->rows * grid->high - 1) + 0.5);
        unsigned from = joined && last_y < y ? last_y + 1 : y, to = joined && last_y > y ? last_y - 1 : y;
        for (unsigned dot = from; dot <= to; dot++)
            set_dot(grid, x, dot);
        last_y = y;
        joined = true;
    }
}

static void print_row(struct zr_text *text, const struct grid *grid, unsigned row)
{
    for (unsigned column = 0; column < grid->columns; column++) {
        unsigned char cell = grid->cells[row][column];
        if (grid->wide == 1) {
            zr_text_put(text, cell ? "*" : " ", 1);
        } else if (!cell) {
            zr_text_put(text, " ", 1);
        } else { /* U+2800 + cell */
            char glyph[3] = {(char)0xe2, (char)(0xa0 | cell >> 6), (char)(0x80 | (cell & 63))};
            zr_text_put(text, glyph, 3);
        }
    }
}

void zr_chart_draw(struct zr_text *text, const struct zr_chart *chart)
{
    struct grid grid = {.wide = chart->utf8 ? 2 : 1, .high = chart->utf8 ? 4 : 1};
    char first[ZR_NUMBER_ROOM], last[ZR_NUMBER_ROOM];

    unsigned columns = chart->columns < 20 ? 20 : chart->columns;
    grid.columns = columns - AXIS_COLUMNS < MAX_COLUMNS ? columns - AXIS_COLUMNS : MAX_COLUMNS;
    grid.rows = chart->rows < 2 ? 2 : chart->rows > MAX_ROWS ? MAX_ROWS : chart->rows;
    struct scale scale = find_scale(chart, grid.columns * grid.wide);
    if (chart->count < 2 || !(scale.min <= scale.max))
        return;
    plot(&grid, chart, &scale);
    for (unsigned row = 0; row < grid.rows; row++) {
        if (row == 0 || row == grid.rows - 1)
            zr_text_print(text, "%8.3f ", row == 0 ? scale.max : scale.min);
        else
            zr_text_print(text, "%8s ", "");
        zr_text_print(text, "%s", chart->utf8 ? "│" : "|");
        print_row(text, &grid, row);
        zr_text_print(text, "\n");
    }
    zr_text_print(text, "%8s %s", "", chart->utf8 ? "└" : "+");
    for (unsigned column = 0; column < grid.columns; column++)
        zr_text_print(text, "%s", chart->utf8 ? "─" : "-");
    zr_number_grouped(first, chart->first);
    zr_number_grouped(last, chart->first + chart->count - 1);
    int gap = (int)grid.columns - (int)strlen(first);
    zr_text_print(text, "\n%8s  %s%*s\n", "step", first, gap > 0 ? gap : 0, last);
}
