"""A picture of curves, as SVG."""
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 360, 56, 150, 20, 50
COLOURS = ("#444444", "#1f77b4", "#17becf", "#2ca02c", "#d62728", "#ff7f0e", "#9467bd", "#8c564b")


def draw(file, curves, words, dashed=()):
    """curves: points (seconds, value) by name; words: of the values; dashed: a second set of curves, some with the same names."""
    both = [*curves.values(), *dict(dashed).values()]
    end = max(at for curve in both for at, _ in curve)
    low, high = (limit(value for curve in both for _, value in curve) for limit in (min, max))
    place = lambda at, value: f"{LEFT + at / end * (WIDTH - LEFT - RIGHT):.1f},{TOP + (high - value) / ((high - low) or 1) * (HEIGHT - TOP - BOTTOM):.1f}"
    line = lambda curve, colour, more="": f'<polyline fill="none" stroke="{colour}" stroke-width="1.5"{more} points="{" ".join(place(*point) for point in curve)}"/>'
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="13">',
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
             f'<path d="M{LEFT - 6},{TOP} V{HEIGHT - BOTTOM + 6} H{WIDTH - RIGHT}" fill="none" stroke="#999999"/>',
             f'<text x="{LEFT}" y="{HEIGHT - 22}">{words} over 0 to {end:.0f} seconds</text>',
             f'<text x="4" y="{TOP + 4}">{high:.3g}</text>', f'<text x="4" y="{HEIGHT - BOTTOM}">{low:.3g}</text>']
    for number, (name, curve) in enumerate(curves.items()):
        lines += [line(curve, COLOURS[number]), f'<text x="{WIDTH - RIGHT + 10}" y="{30 + 20 * number}" fill="{COLOURS[number]}">{name}</text>']
        if name in dashed:
            lines.append(line(dashed[name], COLOURS[number], ' stroke-dasharray="5,3"'))
    with open(file, "w") as out:
        out.write("\n".join(lines + ["</svg>", ""]))
