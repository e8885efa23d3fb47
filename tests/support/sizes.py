"""sizes.py: sizes in bytes as the programs print them."""


def size(amount):
    """As zr_size_print() of alloc/base/sizes.h: "1.50 GiB", "640 KiB", "0"."""
    if amount == 0:
        return "0"
    value, unit = float(amount), 0
    while value >= 1023.5 and unit < 6:
        value, unit = value / 1024, unit + 1
    decimals = 0 if unit == 0 or value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{decimals}f} {'B KiB MiB GiB TiB PiB EiB'.split()[unit]}"
