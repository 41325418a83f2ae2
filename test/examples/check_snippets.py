#!/usr/bin/env python3
"""Checks that the code blocks of README.md and docs/ are the examples' own text: check_snippets.py ROOT [--update]

A block of C, C++ or Python in a page is preceded by a line `<!-- examples/NAME -->` and equals the part of that file
between the lines `// [snippet]` and `// [/snippet]` (`#` in Python), less its indentation. A file with several parts
names them, `// [snippet use]`, and the page says `<!-- examples/NAME use -->`. A block that cannot be compiled by
itself says why: `<!-- not an example: REASON -->`. --update rewrites the blocks from the examples.
"""
import pathlib
import re
import sys
import textwrap

LANGUAGES = {"c", "cc", "cpp", "c++", "python", "py"}
SOURCE = re.compile(r"<!-- (examples/\S+?)(?: (\w+))? -->")
EXCUSE = re.compile(r"<!-- not an example: \S.* -->")


class Problem(Exception):
    """One sentence for the reader."""


def region(root, name, part):
    """The lines of a file's marked part."""
    path = root / name
    if not path.is_file():
        raise Problem(f"there is no {name}")
    label = f" {part}" if part else ""
    lines, inside, found = [], False, False
    for line in path.read_text(encoding="utf-8").splitlines():
        mark = line.strip().lstrip("/# ")
        if mark == f"[snippet{label}]":
            inside = found = True
        elif inside and mark == f"[/snippet{label}]":
            inside = False
        elif inside:
            lines.append(line)
    if not found or inside:
        raise Problem(f"{name} has no [snippet{label}] ... [/snippet{label}]")
    return textwrap.dedent("\n".join(lines)).split("\n")


def check_page(root, page, update):
    """The problems of one page, and the page as it should be."""
    problems, out, block, language, before = [], [], None, "", ""
    lines = page.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        if block is None:
            out.append(line)
            if line.startswith("```"):
                block, language, start = [], line[3:].strip().lower(), number
            elif line.strip():
                before = line.strip()
        elif line.startswith("```"):
            wanted = block
            if language in LANGUAGES and not EXCUSE.fullmatch(before):
                where = f"{page.relative_to(root)}:{start}"
                source = SOURCE.fullmatch(before)
                try:
                    if not source:
                        raise Problem("a code block without `<!-- examples/NAME -->` before it")
                    wanted = region(root, source[1], source[2])
                    if wanted != block and not update:
                        raise Problem(f"differs from {source[1]}; run test/examples/check_snippets.py . --update")
                except Problem as problem:
                    problems.append(f"{where}: {problem}")
            out += wanted + [line]
            block, before = None, ""
        else:
            block.append(line)
    if block is not None:
        problems.append(f"{page.relative_to(root)}: a code block that never ends")
    return problems, out


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    update = "--update" in sys.argv[2:]
    problems = []
    for page in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
        found, text = check_page(root, page, update)
        problems += found
        if update and not found:
            page.write_text("\n".join(text) + "\n", encoding="utf-8")
    print("\n".join(problems) or "every code block is an example's text")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
