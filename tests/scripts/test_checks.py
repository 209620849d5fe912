"""What the checks of documents and of changed sources find: scripts/check_links.py, check_prose.py, tidy.py."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import check_links  # noqa: E402
import check_prose  # noqa: E402
import tidy  # noqa: E402


class InFolder(unittest.TestCase):
    """A folder of its own, which is the working directory."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(folder.name)

    def write(self, path, text):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)

    def commit(self, path, text):
        self.write(path, text)
        subprocess.run(["git", "add", "."], check=True)
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"], check=True)
        return tidy.git("rev-parse", "HEAD")[0]


class LinksTest(InFolder):
    def problems(self, text):
        self.write("docs/a.md", text)
        return [check_links.problem(Path("docs/a.md"), target) for _, target in check_links.links(text)]

    def test_files_and_headings(self):
        self.write("docs/b.md", "# The *big* picture: `x`\n## Twice\n## Twice\n```\n# no heading\n```\n<a id='own'></a>\n")
        self.write("README.md", "")
        good = "[1](b.md) [2](b.md#the-big-picture-x) [3](b.md#twice-1) [4](b.md#own) [5](../README.md) [6](https://x.y/z)\n"
        self.assertEqual(self.problems(good), [""] * 6)
        bad = "[1](c.md) [2](b.md#three) [3](b.md#no-heading) ![4](x.png) [5](/README.md)\n\n[ref]: gone.md\n<img src='no.svg'>\n"
        self.assertEqual(len([reason for reason in self.problems(bad) if reason]), 7)

    def test_own_headings(self):
        self.assertEqual(self.problems("# Here\n[1](#here) [2](#there)\n"), ["", "leads to no heading of a.md"])

    def test_code_has_no_links(self):
        self.assertEqual(check_links.links("`[1](x)` \n```\n[2](y)\n```\n    indented `a[i](b)`\n"), [])


class ProseTest(InFolder):
    def test_phrases_in_documents_and_comments(self):
        self.write("a.md", "It is told twice.\n")
        self.write("a.cpp", "int held_against;  // held against the limit\nint is_told = 1;\n")
        self.assertEqual(check_prose.check_phrases(["a.md"]), 1)
        self.assertEqual(check_prose.check_phrases(["a.cpp"]), 1)


class ChangedTest(InFolder):
    def test_the_base_is_the_merge_base_or_the_commit_before(self):
        subprocess.run(["git", "init", "-q", "-b", "main"], check=True)
        first = self.commit("a", "1")
        self.assertIsNone(tidy.base_of_change())  # nothing to compare with
        second = self.commit("a", "2")
        self.assertEqual(tidy.base_of_change(), first)
        subprocess.run(["git", "update-ref", "refs/remotes/origin/main", second], check=True)
        self.assertEqual(tidy.base_of_change(), first)  # a clean clone of main
        self.commit("a", "3")
        self.commit("a", "4")
        self.assertEqual(tidy.base_of_change(), second)  # a branch

    def test_a_header_stands_for_one_source(self):
        sources = ["mhla/core/a.cpp", "mhla/core/b.cpp", "mhla/core/c.cpp"]
        for path in sources:
            self.write(path, '#include "mhla/core/used.h"\n' if path != sources[0] else "")
        self.assertEqual(tidy.sources_of(["mhla/core/a.h", "README.md"], sources), sources[:1])
        self.assertEqual(tidy.sources_of(["mhla/core/used.h"], sources), [sources[1]])
        self.assertEqual(tidy.sources_of(["mhla/core/used.h", "mhla/core/c.cpp"], sources), [sources[2]])
        self.assertEqual(tidy.sources_of(["mhla/core/unused.h", "mhla/models/x.cpp"], sources), [])


if __name__ == "__main__":
    unittest.main()
