"""The graph as a picture: mermaid text, and an SVG that needs no other program."""

from __future__ import annotations

from html import escape

from marin_pipeline.run.plan import Plan

_COLOURS = {
    "cached": "#d5e8d4",
    "run": "#dae8fc",
    "stale": "#ffe6cc",
    "drift": "#fff2cc",
    "leased": "#e1d5e7",
    "blocked": "#f8cecc",
}

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 190, 44, 30, 46, 20


_LINE = 24
"""Steps beside each other; a layer with more of them takes several lines."""

_LONGEST = 40
"""Characters of a name that are drawn; the rest is in its title."""


def mermaid(plan: Plan) -> str:
    """The graph as mermaid text, dependencies above."""
    lines = ["flowchart TD"]
    for key, planned in plan.nodes.items():
        # In quotes all is text but quotes and entities, which begin with `#` and end with `;`.
        label = "".join(map(_in_quotes, planned.node.name))
        unpinned = " unpinned" if planned.node.unpinned else ""
        lines.append(f'    {_node(key)}["{label}<br/>{key[:8]}{unpinned}"]:::{planned.status}')
        lines.extend(f"    {_node(dependency)} --> {_node(key)}" for dependency in planned.node.depends_on)
    used = sorted({planned.status for planned in plan.nodes.values()})
    lines.extend(f"    classDef {status} fill:{_COLOURS[status]},stroke:#666,color:#000" for status in used)
    return "\n".join(lines)


def _in_quotes(letter: str) -> str:
    return letter if letter.isalnum() or letter in "_-/[]" else f"#{ord(letter)};"


def _node(key: str) -> str:
    """A node's id in mermaid text."""
    return f"k{key[:16]}"


def _plain(text: str) -> str:
    """Without the characters that XML cannot hold, such as the colours of a terminal in a failure's message."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _short(name: str) -> str:
    """A name as it is drawn: its end is what tells the cells of a grid apart."""
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST // 3]}…{name[-(2 * _LONGEST) // 3 + 1 :]}"


def svg(plan: Plan) -> str:
    """The graph as SVG: each step below all that it needs."""
    # 7 is a little more than the mean width of a letter of 12 px.
    box = max(_WIDTH, 20 + 7 * max(len(_short(planned.node.name)) for planned in plan.nodes.values()))
    layer: dict[str, int] = {}
    for key, planned in plan.nodes.items():
        layer[key] = 1 + max((layer[each] for each in planned.node.depends_on), default=-1)
    layers: dict[int, list[str]] = {}
    for key, row in layer.items():
        layers.setdefault(row, []).append(key)
    rows = [layers[row][start : start + _LINE] for row in sorted(layers) for start in range(0, len(layers[row]), _LINE)]
    widest = max(len(row) for row in rows)
    total = widest * (box + _GAP_X) - _GAP_X
    place: dict[str, tuple[float, float]] = {}
    for row, keys in enumerate(rows):
        start = _MARGIN + (total - (len(keys) * (box + _GAP_X) - _GAP_X)) / 2
        for index, key in enumerate(keys):
            place[key] = (start + index * (box + _GAP_X), _MARGIN + row * (_HEIGHT + _GAP_Y))
    height = 2 * _MARGIN + len(rows) * (_HEIGHT + _GAP_Y) - _GAP_Y
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total + 2 * _MARGIN}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        '<defs><marker id="end" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#666"/></marker></defs>',
    ]
    for key, planned in plan.nodes.items():
        x, y = place[key]
        for dependency in planned.node.depends_on:
            from_x, from_y = place[dependency]
            lines.append(
                f'<path d="M{from_x + box / 2} {from_y + _HEIGHT} L{x + box / 2} {y}" '
                'stroke="#666" fill="none" marker-end="url(#end)"/>'
            )
    for key, planned in plan.nodes.items():
        x, y = place[key]
        names = " ".join(planned.node.names)
        name = escape(_plain(_short(planned.node.name)))
        unpinned = f"unpinned: {', '.join(planned.node.unpinned)}" if planned.node.unpinned else ""
        title = escape(_plain(f"{names} {planned.node.id} {key} {planned.status} {planned.told} {unpinned}".strip()))
        dashed = ' stroke-dasharray="4 3"' if unpinned else ""
        lines.append(
            f'<g><title>{title}</title><rect x="{x}" y="{y}" width="{box}" height="{_HEIGHT}" rx="5" '
            f'fill="{_COLOURS[planned.status]}" stroke="#666"{dashed}/>'
            f'<text x="{x + box / 2}" y="{y + 18}" text-anchor="middle">{name}</text>'
            f'<text x="{x + box / 2}" y="{y + 34}" text-anchor="middle" fill="#666">{key[:8]} {planned.status}</text>'
            "</g>"
        )
    return "\n".join([*lines, "</svg>"])
