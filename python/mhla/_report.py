"""A small HTML page without anything from elsewhere: a table, and pictures of mixing matrices as SVG."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

STYLE = ("body{font:15px system-ui,sans-serif;margin:2em;max-width:70em}table{border-collapse:collapse}"
         "td,th{padding:.3em .8em;border-bottom:1px solid #ddd;text-align:right}td:first-child,th:first-child{text-align:left}"
         "figure{display:inline-block;margin:1em}figcaption{color:#555}")  # fmt: skip


def matrix_svg(values: Tensor, side: int = 180) -> str:
    """A square of ``values`` ``[M, M]``, white for 0 and dark for the largest."""
    M = values.shape[0]
    top = max(float(values.max()), 1e-12)
    cell = side / M
    squares = []
    for i in range(M):
        for j in range(M):
            share = min(1.0, max(0.0, float(values[i, j]) / top))
            shade = f"rgb({int(255 - 222 * share)},{int(255 - 153 * share)},{int(255 - 83 * share)})"
            squares.append(f'<rect x="{j * cell:.2f}" y="{i * cell:.2f}" width="{cell:.2f}" height="{cell:.2f}" fill="{shade}"/>')
    return f'<svg width="{side}" height="{side}" role="img" style="border:1px solid #ccc">{"".join(squares)}</svg>'


def page(title: str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]], matrices: Mapping[str, Tensor]) -> str:
    """Text of the page."""

    def cell(value: Any) -> str:
        return "&ndash;" if value is None else f"{value:.3f}" if isinstance(value, float) else html.escape(str(value))

    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{cell(row[name])}</td>" for name in columns) + "</tr>" for row in rows)
    figures = []
    for name, values in matrices.items():
        for h, one in enumerate(values if values.dim() == 3 else [values]):
            caption = html.escape(name) + (f", head {h}" if values.dim() == 3 else "")
            figures.append(f"<figure>{matrix_svg(one)}<figcaption>{caption}</figcaption></figure>")
    return ('<!doctype html><html lang="en"><meta charset="utf-8">'
            f"<title>mhla: {html.escape(title)}</title><style>{STYLE}</style>"
            f"<h1>{html.escape(title)}</h1><table><tr>{head}</tr>{body}</table>"
            + (f"<h2>mixing matrices</h2>{''.join(figures)}" if figures else "") + "</html>\n")  # fmt: skip
