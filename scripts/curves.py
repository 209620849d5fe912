"""Curves over steps as an SVG file, for the documents. Python 3 only, without packages."""

COLORS = ["#2166ac", "#b2182b", "#1b7837", "#e08214", "#762a83", "#777777"]


def drawn(curves, title, below, low, high, value="{:.2f}", mark="{:.1f}", lines=(), legend=(300, 205)):
    """{name: points (step, value)} in one frame. Values outside of `low` to `high` are drawn at the edge; the last one of a curve
    stands in the legend, which begins at `legend`. `lines`: (value, text) across the frame."""
    last = max(step for points in curves.values() for step, _ in points)
    at = lambda step, y: (60 + 520 * step / last, 250 - 220 * (min(max(y, low), high) - low) / (high - low))
    parts = []
    for y, text in lines:
        parts.append(f'<line x1="60" y1="{at(0, y)[1]:.1f}" x2="580" y2="{at(0, y)[1]:.1f}" stroke="#777" stroke-dasharray="5 4"/>')
        parts.append(f'<text x="580" y="{at(0, y)[1] - 6:.1f}" text-anchor="end" fill="#555">{text}</text>')
    for i, ((name, points), color) in enumerate(zip(curves.items(), COLORS)):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in points))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts.append(f'<text x="{legend[0]}" y="{legend[1] + 20 * i}" fill="{color}">{name}: {value.format(points[-1][1])}</text>')
    marks = [low + (high - low) * i / 4 for i in range(5)]
    parts += [f'<text x="52" y="{at(0, m)[1] + 4:.1f}" text-anchor="end" fill="#555">{mark.format(m)}</text>' for m in marks]
    parts += [f'<text x="{at(step, low)[0]:.0f}" y="270" text-anchor="middle" fill="#555">{step}</text>' for step in (0, last // 2, last)]
    parts.append(f'<text x="320" y="290" text-anchor="middle" fill="#555">{below}</text>')
    parts.append(f'<text x="60" y="20" fill="#333">{title}</text>')
    return ('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 600 300" font-family="sans-serif" font-size="13">'
            f'<rect width="600" height="300" fill="#fff"/>{"".join(parts)}</svg>\n')  # fmt: skip
