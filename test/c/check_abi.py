#!/usr/bin/env python3
"""Compares the C ABI with its record: check_abi.py RECORD LAYOUTS_PROGRAM LIBRARY HEADERS [--update]

RECORD lists the exported symbols of the shared LIBRARY, its soname, and what LAYOUTS_PROGRAM prints. Every struct field
of HEADERS, a header or a folder of them, must be in it, so that a new one is not forgotten. --update writes the record anew:
allowed for what is added at an end (docs/c_api.md), never for what has changed.
"""
import difflib
import pathlib
import re
import subprocess
import sys


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def exported(library):
    """Names that the library defines for others, without the node of its version script."""
    for line in run("nm", "-D", "--defined-only", library).splitlines():
        kind, name = line.split()[-2:]
        if kind != "A":
            yield name.split("@")[0]


def soname(library):
    return re.search(r"\(SONAME\).*\[(.*)\]", run("readelf", "-d", library)).group(1)


def fields(headers):
    """struct -> its fields, as the headers declare them."""
    headers = pathlib.Path(headers)
    for header in sorted(headers.glob("*.h")) if headers.is_dir() else [headers]:
        text = re.sub(r"/\*.*?\*/", "", header.read_text(encoding="utf-8"), flags=re.S)
        for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\n\} \1;", text, flags=re.S):
            declarations = [d.strip() for d in body.split(";") if d.strip()]
            found = [re.search(r"\(\*(\w+)\)|(\w+)(?:\[\d+\])?$", d) for d in declarations]
            yield name, [m.group(1) or m.group(2) for m in found]


def main():
    record, program, library, headers = sys.argv[1:5]
    layouts = run(program)
    lines = [f"soname {soname(library)}", "", "exported:", *(f"  {name}" for name in sorted(exported(library))), "",
             *layouts.splitlines()]
    now = "\n".join(lines) + "\n"
    missing = []
    for name, members in fields(headers):
        block = re.search(rf"^{name}: .*\n((?:  .*\n)*)", layouts, flags=re.M)
        listed = re.findall(r"^  (\w+):", block.group(1), flags=re.M) if block else []
        if listed != members:
            missing.append(f"test/c/layouts.c lists {name} as {listed}, the header as {members}")
    if "--update" in sys.argv and not missing:
        pathlib.Path(record).write_text(now, encoding="utf-8")
    before = pathlib.Path(record).read_text(encoding="utf-8").splitlines()
    difference = list(difflib.unified_diff(before, now.splitlines(), "recorded", "now", lineterm=""))
    print("\n".join(missing + difference))
    return 1 if missing or difference else 0


if __name__ == "__main__":
    sys.exit(main())
