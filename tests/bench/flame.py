"""Draws where the time goes: a flame picture of what `py-spy record --format raw` has written.

`python -m tests.bench.flame SAMPLES > docs/flame.svg`. Widths are shares of the samples in which the process did
something; a thread of a pool that waits for work is left out. What lies below the event loop and the threads is left
out too, since it is the same for all.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

WIDTH, ROW, TEXT = 1200, 18, 6.3
# A narrower frame shows nothing, in units of the picture.
NARROWEST = 3.0
# What every stack begins with, up to and with the last frame whose name is one of these.
BELOW = ("AsyncioSelectorReactor.run", "_WorkItem.run")
WAITING = "_worker"
COLOURS = (
    (re.compile(r"^(gateway|accounts)/server/"), "#f2a65a"),
    (re.compile(r"^(gateway|accounts)/"), "#ee6c4d"),
    (re.compile(r"^(django|sqlite3)/"), "#7aa6c2"),
    (re.compile(r"^(websockets|twisted|autobahn|httpcore|httpx|h11)/"), "#b5c689"),
)
OTHER = "#cfcfcf"
_FRAME = re.compile(r"(?P<name>.+) \((?P<file>.+?)(?::\d+)?\)$")


@dataclass
class Box:
    """A frame, how many samples were in it, and the frames above it."""

    name: str
    file: str
    samples: int = 0
    above: dict[tuple[str, str], Box] = field(default_factory=dict)

    @property
    def colour(self) -> str:
        return next((colour for of, colour in COLOURS if of.match(self.file)), OTHER)


def grown(lines: Iterable[str]) -> Box:
    """All stacks as one tree; raises `ValueError` for a line that is no stack with its count."""
    root = Box("all", "")
    for line in lines:
        stack, _, count = line.rpartition(" ")
        frames = [(found["name"], found["file"]) for each in stack.split(";") if (found := _FRAME.match(each))]
        if not frames or frames[-1][0] == WAITING:
            continue
        _plant(root, _beyond(frames), int(count))
    return root


def _beyond(frames: Sequence[tuple[str, str]]) -> Sequence[tuple[str, str]]:
    known = [place for place, (name, _) in enumerate(frames) if name in BELOW]
    return frames[known[-1] :] if known else frames


def _plant(root: Box, frames: Sequence[tuple[str, str]], count: int) -> None:
    box = root
    box.samples += count
    for frame in frames:
        box = box.above.setdefault(frame, Box(*frame))
        box.samples += count


def drawn(root: Box) -> str:
    """The tree as an SVG picture, the event loop and the threads at the bottom."""
    boxes = list(_placed(root, 0.0, 0, WIDTH / max(1, root.samples)))
    height = (1 + max(level for _, _, _, level in boxes)) * ROW
    shapes = "\n".join(_shape(box, x, width, height - (level + 1) * ROW, root) for box, x, width, level in boxes)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="monospace"'
    return f'{head} font-size="10.5">\n<rect width="{WIDTH}" height="{height}" fill="white"/>\n{shapes}\n</svg>\n'


def _placed(box: Box, x: float, level: int, scale: float) -> Iterator[tuple[Box, float, float, int]]:
    width = box.samples * scale
    if width < NARROWEST:
        return
    yield box, x, width, level
    for above in sorted(box.above.values(), key=lambda each: -each.samples):
        yield from _placed(above, x, level + 1, scale)
        x += above.samples * scale


def _shape(box: Box, x: float, width: float, y: float, root: Box) -> str:
    share = f"{100 * box.samples / root.samples:.1f} %"
    title = escape(f"{box.name} {box.file} {share}".strip())
    label = box.name if len(box.name) * TEXT < width else box.name.rpartition(".")[2]
    text = escape(label) if len(label) * TEXT < width else ""
    rect = f'<rect x="{x:.1f}" y="{y}" width="{max(1.0, width - 0.6):.1f}" height="{ROW - 1}" fill="{box.colour}"/>'
    return f'<g><title>{title}</title>{rect}<text x="{x + 3:.1f}" y="{y + 12.5}">{text}</text></g>'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("samples", type=Path, help="what py-spy has written")
    sys.stdout.write(drawn(grown(parser.parse_args().samples.read_text().splitlines())))


if __name__ == "__main__":
    main()
