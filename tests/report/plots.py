"""Plots as SVG, readable on a light and on a dark page: each has a background of its own that follows the reader's choice."""

import math
from xml.sax.saxutils import escape

# By what they are contrasted with: https://www.w3.org/TR/WCAG21/#non-text-contrast asks for 3 : 1.
LIGHT, DARK = "#ffffff", "#0d1117"
COLOURS = {
    "blue": "#2f81f7",
    "orange": "#d4761c",
    "green": "#2da44e",
    "red": "#e5534b",
    "purple": "#a371f7",
    "teal": "#1a9c9c",
    "brown": "#a5714a",
    "grey": "#7d8590",
}
STYLE = f"""
.back {{ fill: {LIGHT} }} .text {{ fill: #1f2328 }} .faint {{ fill: #59636e }}
.line {{ stroke: #d1d9e0 }} .axis {{ stroke: #59636e }}
text {{ font: 12px system-ui, sans-serif }} .head {{ font-weight: bold }} .large {{ font-size: 15px; font-weight: bold }}
@media (prefers-color-scheme: dark) {{
.back {{ fill: {DARK} }} .text {{ fill: #f0f6fc }} .faint {{ fill: #9198a1 }} .line {{ stroke: #3d444d }} .axis {{ stroke: #9198a1 }}
}}
"""
# How wide a letter is at most, on average.
LETTER = 6.8
MARGIN = 16


def short(value):
    """A number as it stands at an axis."""
    for factor, suffix in ((1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:g}{suffix}"
    return f"{value:g}"


class Svg:
    def __init__(self, title, width, height):
        self.title, self.width, self.height, self.parts = title, width, height, []

    def add(self, element):
        self.parts.append(element)

    def text(self, x, y, text, kind="text", anchor="start"):
        self.add(f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>')

    def line(self, x1, y1, x2, y2, kind="line"):
        self.add(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>')

    def stroke(self, points, colour):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.add(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')

    def mark(self, x, y, colour, shape, name):
        """A point; its name shows under the pointer."""
        drawn = {
            "circle": f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4"',
            "square": f'<rect x="{x - 3.5:.1f}" y="{y - 3.5:.1f}" width="7" height="7"',
            "diamond": f'<path d="M{x:.1f},{y - 5:.1f} l5,5 -5,5 -5,-5 z"',
            "triangle": f'<path d="M{x:.1f},{y - 5:.1f} l5,9 -10,0 z"',
        }[shape]
        tag = drawn[1:].split()[0]
        self.add(f'{drawn} fill="{colour}" class="mark"><title>{escape(name)}</title></{tag}>')

    def cross(self, x, y, colour):
        for way in (1, -1):
            ends = [(x - 5, y - 5 * way), (x + 5, y + 5 * way)]
            self.stroke(ends, colour)

    def __str__(self):
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:.0f} {self.height:.0f}" '
                f'width="{self.width:.0f}" height="{self.height:.0f}" role="img">',
                f"<title>{escape(self.title)}</title>",
                f"<style>{STYLE}</style>",
                '<rect class="back" width="100%" height="100%"/>',
                *self.parts,
                "</svg>",
                "",
            ]
        )


class Log:
    """A logarithmic scale from whole decades to whole decades."""

    def __init__(self, values, start, end):
        self.low = math.floor(math.log10(min(values)))
        self.high = max(math.ceil(math.log10(max(values))), self.low + 1)
        self.start, self.end = start, end

    def at(self, value):
        return self.start + (self.end - self.start) * (math.log10(value) - self.low) / (self.high - self.low)

    def decades(self):
        return [10.0**power for power in range(self.low, self.high + 1)]

    def between(self):
        """Two and five of each decade, where there is room for them."""
        room = abs(self.end - self.start) / (self.high - self.low)
        return [2 * ten for ten in self.decades()[:-1]] + [5 * ten for ten in self.decades()[:-1]] if room > 110 else []


def dots(title, unit, groups):
    """A row for each side, a group of rows for each store: `(store, [(label, colour, shape, spread)])`. The whiskers are quartiles."""
    shown = [(store, [row for row in rows if row[3] and row[3].low > 0]) for store, rows in groups]
    shown = [(store, rows) for store, rows in shown if rows]
    if not shown:
        return None
    labels = [row[0] for _, rows in shown for row in rows]
    left = MARGIN + max(LETTER * len(label) for label in labels) + 2 * MARGIN
    width = max(left + 520, LETTER * 1.4 * len(title) + 2 * MARGIN)
    top, step = 64, 20
    height = top + sum(step * (len(rows) + 1.4) for _, rows in shown) + MARGIN
    svg = Svg(title, width, height)
    svg.text(MARGIN, 26, title, "text large")
    values = [value for _, rows in shown for row in rows for value in row[3]]
    scale = Log(values, left, width - 70)
    for value in scale.decades() + scale.between():
        svg.line(scale.at(value), top, scale.at(value), height - MARGIN)
        svg.text(scale.at(value), top - 8, short(value), "faint", "middle")
    svg.text(left - MARGIN, top - 8, unit, "faint", "end")
    y = top
    for store, rows in shown:
        y += step
        svg.text(MARGIN, y, store, "text head")
        for label, colour, shape, (low, median, high) in rows:
            y += step
            svg.text(MARGIN + 12, y, label)
            middle = y - 4
            svg.stroke([(scale.at(low), middle), (scale.at(high), middle)], COLOURS[colour])
            figure = f"{median:,.4g}" if median < 1e4 else f"{median:,.0f}"
            svg.mark(scale.at(median), middle, COLOURS[colour], shape, f"{store}, {label}: {figure} {unit}")
            svg.text(scale.at(high) + 9, y, figure, "faint")
        y += 0.4 * step
    return str(svg)


def lines(title, across, panels, looks, cut=()):
    """Panels side by side, each with a line for each store: `(heading, unit, {store: {x: spread}})`. `looks` has the colour and the
    shape of each store. A point's whiskers are quartiles. The lines of stores in `cut` end with a cross."""
    drawn = []
    for heading, unit, curves in panels:
        points = {
            store: {x: it for x, it in curve.items() if it.low > 0 and x > 0} for store, curve in curves.items()
        }
        points = {store: curve for store, curve in points.items() if curve}
        if points:
            drawn.append((heading, unit, points))
    if not drawn:
        return None
    each, top, bottom = 330, 74, 340
    stores = [store for store in looks if any(store in points for _, _, points in drawn)]
    width = max(MARGIN + each * len(drawn) + MARGIN, LETTER * 1.4 * len(title) + 2 * MARGIN, 560)
    svg = Svg(title, width, bottom + 96)
    svg.text(MARGIN, 26, title, "text large")
    for number, (heading, unit, points) in enumerate(drawn):
        panel(svg, MARGIN + number * each, each, top, bottom, heading, unit, across, points, looks, cut)
    x, y = MARGIN, bottom + 64
    for store in stores:
        if x + 24 + LETTER * len(store) > width - MARGIN:
            x, y = MARGIN, y + 20
        colour, shape = looks[store]
        svg.mark(x + 6, y - 4, COLOURS[colour], shape, store)
        svg.text(x + 16, y, store)
        x += 36 + LETTER * len(store)
    return str(svg)


def panel(svg, start, wide, top, bottom, heading, unit, across, points, looks, cut):
    left, right = start + 44, start + wide - 18
    xs = [x for curve in points.values() for x in curve]
    ys = [value for curve in points.values() for point in curve.values() for value in point]
    horizontal, vertical = Log(xs + [1], left, right), Log(ys, bottom, top)
    svg.text(start + 4, top - 26, heading, "text head")
    svg.text(start + 4, top - 11, unit, "faint")
    for value in vertical.decades():
        svg.line(left, vertical.at(value), right, vertical.at(value))
        svg.text(left - 6, vertical.at(value) + 4, short(value), "faint", "end")
    for value in horizontal.decades():
        svg.line(horizontal.at(value), top, horizontal.at(value), bottom)
        svg.text(horizontal.at(value), bottom + 17, short(value), "faint", "middle")
    svg.line(left, bottom, right, bottom, "axis")
    svg.text((left + right) / 2, bottom + 36, across, "faint", "middle")
    for store, curve in points.items():
        colour, shape = looks[store]
        colour = COLOURS[colour]
        svg.stroke([(horizontal.at(x), vertical.at(it.median)) for x, it in curve.items()], colour)
        for x, it in curve.items():
            at = horizontal.at(x)
            svg.stroke([(at, vertical.at(it.low)), (at, vertical.at(it.high))], colour)
            name = f"{store}, {x:,} {across}: {it.median:,.4g} {unit}"
            svg.mark(at, vertical.at(it.median), colour, shape, name)
        if store in cut:
            svg.cross(at + 11, vertical.at(it.median), colour)
