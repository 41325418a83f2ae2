#!/usr/bin/env python3
"""The snippet checker finds what it is there to find."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

CHECKER = pathlib.Path(__file__).with_name("check_snippets.py")
EXAMPLE = "int main() {\n  // [snippet]\n  int n = 1;\n    // deeper\n  // [/snippet]\n}\n"
BLOCK = "```cpp\nint n = 1;\n  // deeper\n```\n"


class CheckSnippets(unittest.TestCase):
    def check(self, page, *options, example=EXAMPLE):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "docs" / "deep").mkdir(parents=True)
            (root / "examples").mkdir()
            (root / "README.md").write_text("# nothing\n", encoding="utf-8")
            (root / "docs" / "deep" / "page.md").write_text(page, encoding="utf-8")
            (root / "examples" / "a.cc").write_text(example, encoding="utf-8")
            done = subprocess.run([sys.executable, CHECKER, root, *options], capture_output=True, text=True, check=False)
            self.page = (root / "docs" / "deep" / "page.md").read_text(encoding="utf-8")
        return done.returncode, done.stdout

    def test_equal_block_passes(self):
        self.assertEqual(self.check("<!-- examples/a.cc -->\n" + BLOCK)[0], 0)
        self.assertEqual(self.check("<!-- examples/a.cc -->\n\n" + BLOCK)[0], 0)

    def test_different_block_fails(self):
        for changed in (BLOCK.replace("1", "2"), BLOCK.replace("  // deeper\n", ""), BLOCK.replace("int", "\nint")):
            code, output = self.check("<!-- examples/a.cc -->\n" + changed)
            self.assertEqual(code, 1)
            self.assertIn("docs/deep/page.md:2: differs from examples/a.cc", output)

    def test_unmarked_block_fails(self):
        for language in ("cpp", "c", "python", "C++"):
            self.assertEqual(self.check(f"text\n```{language}\nint n;\n```\n")[0], 1)
        # The mark of one block does not serve the next.
        self.assertEqual(self.check("<!-- examples/a.cc -->\n" + BLOCK + BLOCK)[0], 1)

    def test_excused_and_other_blocks_pass(self):
        self.assertEqual(self.check("<!-- not an example: a fragment -->\n```cpp\nint n;\n```\n")[0], 0)
        self.assertEqual(self.check("```sh\n./check\n```\n```\nint n;\n```\n")[0], 0)
        self.assertEqual(self.check("<!-- not an example: -->\n```cpp\nint n;\n```\n")[0], 1)

    def test_missing_file_part_or_end_fails(self):
        self.assertIn("no examples/b.cc", self.check("<!-- examples/b.cc -->\n" + BLOCK)[1])
        self.assertIn("[snippet x]", self.check("<!-- examples/a.cc x -->\n" + BLOCK)[1])
        self.assertEqual(self.check("<!-- examples/a.cc -->\n" + BLOCK, example=EXAMPLE.replace("[/", "[!"))[0], 1)
        self.assertIn("never ends", self.check("<!-- examples/a.cc -->\n```cpp\nint n = 1;\n")[1])

    def test_named_parts(self):
        example = EXAMPLE.replace("snippet]", "snippet use]")
        self.assertEqual(self.check("<!-- examples/a.cc use -->\n" + BLOCK, example=example)[0], 0)

    def test_update_rewrites_the_block(self):
        code, _ = self.check("before\n<!-- examples/a.cc -->\n```cpp\nold\n```\nafter\n", "--update")
        self.assertEqual(code, 0)
        self.assertEqual(self.page, "before\n<!-- examples/a.cc -->\n" + BLOCK + "after\n")


if __name__ == "__main__":
    unittest.main()
