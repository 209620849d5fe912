"""The changelog and version parts of scripts/release.py, and its refusals in a repository of its own."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
import release  # noqa: E402

CHANGELOG = """# Changelog

Words about versions.

## [Unreleased]

The first release, 0.1.0, is in preparation.

### Added

- A thing.
- Another, on
  two lines.

## [0.0.1] - 2020-01-01

- The start.
"""


class ChangelogTest(unittest.TestCase):
    def test_unreleased_becomes_a_section_with_a_date(self):
        text, section = release.release_section(CHANGELOG, "0.1.0", "2026-02-03")
        self.assertEqual(section, "## [0.1.0] - 2026-02-03\n\n### Added\n\n- A thing.\n- Another, on\n  two lines.\n")
        self.assertEqual(
            text,
            "# Changelog\n\nWords about versions.\n\n## [Unreleased]\n\n" + section + "\n## [0.0.1] - 2020-01-01\n\n- The start.\n",
        )

    def test_the_only_section_may_be_unreleased(self):
        only = CHANGELOG[: CHANGELOG.index("## [0.0.1]")]
        text, section = release.release_section(only, "0.1.0", "2026-02-03")
        self.assertTrue(text.endswith("## [Unreleased]\n\n" + section))

    def test_a_second_release_needs_changes(self):
        text, _ = release.release_section(CHANGELOG, "0.1.0", "2026-02-03")
        with self.assertRaisesRegex(release.Refused, "lists no change"):
            release.release_section(text, "0.2.0", "2026-02-04")

    def test_a_version_is_released_once(self):
        with self.assertRaisesRegex(release.Refused, r"has a section \[0.0.1\] already"):
            release.release_section(CHANGELOG, "0.0.1", "2026-02-03")

    def test_our_own_changelog_can_be_released(self):
        changelog = (SCRIPTS.parent / "CHANGELOG.md").read_text(encoding="utf-8")
        text, section = release.release_section(changelog, "999.0.0", "2026-02-03")
        kept = [line for line in changelog.splitlines() if not line.endswith("is in preparation.")]
        self.assertLessEqual(set(filter(None, kept)), set(text.splitlines()))
        self.assertIn(section, text)


class VersionTest(unittest.TestCase):
    def test_the_version_is_written_into_the_project_line(self):
        self.assertEqual(
            release.cmake_with("project(mhla VERSION 0.1.0 LANGUAGES CXX)\n", "0.2.0"), "project(mhla VERSION 0.2.0 LANGUAGES CXX)\n"
        )

    def test_no_older_one(self):
        with self.assertRaisesRegex(release.Refused, "expected at least 0.10.0"):
            release.cmake_with("project(mhla VERSION 0.10.0)", "0.9.0")

    def test_three_numbers(self):
        for version in ("1.0", "v1.0.0", "1.0.0rc1", ""):
            with self.assertRaisesRegex(release.Refused, "three numbers"):
                release.numbers(version)


class DryRunTest(unittest.TestCase):
    """In a repository with a changelog and a CMakeLists.txt."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        root = Path(self.folder.name)
        (root / "CHANGELOG.md").write_text(CHANGELOG)
        (root / "CMakeLists.txt").write_text("project(mhla VERSION 0.1.0)\n")
        self.git("init", "-q")
        self.git("add", ".")
        self.git("config", "user.name", "a")
        self.git("config", "user.email", "a@b")
        self.git("commit", "-qm", "start")

    def git(self, *arguments):
        subprocess.run(["git", *arguments], cwd=self.folder.name, check=True)

    def release(self, *arguments):
        command = [sys.executable, "-B", str(SCRIPTS / "release.py"), *arguments]
        return subprocess.run(command, cwd=self.folder.name, capture_output=True, text=True, check=False)

    def test_it_prints_the_section_and_changes_nothing(self):
        done = self.release("0.1.0", "--dry-run")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("## [0.1.0] - 20", done.stdout)
        self.assertEqual((Path(self.folder.name) / "CHANGELOG.md").read_text(), CHANGELOG)

    def test_changes_that_are_not_committed_are_refused(self):
        (Path(self.folder.name) / "new.txt").write_text("x")
        done = self.release("0.1.0", "--dry-run")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("release: the tree has 1 changes that are not committed, such as '?? new.txt'", done.stderr)

    def test_a_version_that_is_tagged_is_refused(self):
        self.git("tag", "v0.1.0")
        done = self.release("0.1.0", "--dry-run")
        self.assertEqual(done.returncode, 2)
        self.assertIn("release: VERSION is 0.1.0, expected more than v0.1.0, the newest tag", done.stderr)

    def test_a_build_that_fails_leaves_no_commit(self):
        (Path(self.folder.name) / "build").write_text("where the folder should be")
        self.git("add", ".")
        self.git("commit", "-qm", "in the way")
        done = self.release("0.1.0", "--no-wheel")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertRegex(done.stderr, r"\Arelease: .*build.*; nothing was changed\n\Z")
        log = subprocess.run(["git", "log", "-1", "--format=%s"], cwd=self.folder.name, capture_output=True, text=True)
        self.assertEqual(log.stdout, "in the way\n")
        self.assertEqual((Path(self.folder.name) / "CHANGELOG.md").read_text(), CHANGELOG)


if __name__ == "__main__":
    unittest.main()
