#!/usr/bin/env python3
"""site.py: builds the documentation site in build/site with MkDocs and Doxygen and checks it. `make docs` prepares the
Python environment that this needs and calls it.

1. Documents are copied to build/site-src with the folders they have in the repository. A link to a folder becomes a link
   to its README.md. A source file that a document links to is copied as FILE.txt, so that a browser shows it.
2. Doxygen makes the pages of the public headers. `site.py --doxygen FILE` is its filter: our comments start with //.
3. MkDocs builds in strict mode: a dead link or anchor between documents fails.
4. Every page is read again: local targets must exist, and nothing may be loaded from the network."""

from __future__ import annotations

import html.parser
import os
import re
import shutil
import subprocess
import sys
import urllib.parse
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE, SITE, PYTHON = ROOT / "build/site-src", ROOT / "build/site", ROOT / "build/site-python"
IMAGES = {".png", ".svg", ".jpg"}
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s]+)(\))")
ROLE = re.compile(r":(?:func|meth|mod|class):`~?([^`]+)`")  # Sphinx's, in docstrings

# The headers that `make install` installs, without the parts of other headers.
HEADERS = [
    "mhla/c.h", "mhla/core/*.h", "mhla/io/fields.h", "mhla/io/file.h", "mhla/io/json.h", "mhla/io/safetensors.h",
    "mhla/kernels/bidirectional/bidirectional.h", "mhla/kernels/chunkwise/chunkwise.h",
    "mhla/kernels/streaming/streaming.h", "mhla/kernels/mixing/mixing.h", "mhla/kernels/common/layout.h",
    "mhla/kernels/common/options.h", "mhla/kernels/common/support.h", "mhla/ops/ops.h", "mhla/modules/attention*.h",
    "mhla/modules/mhla_attention.h", "mhla/modules/feature_maps.h", "mhla/modules/norms.h", "mhla/modules/rope.h",
    "mhla/modules/convolutions.h", "mhla/modules/weight_names.h", "mhla/modules/zoo/zoo.h",
    "mhla/modules/zoo/attention_config.h", "mhla/models/classify/classifier*.h", "mhla/models/weights_file.h",
    "mhla/models/lm/lm.h", "mhla/models/lm/lm_config.h", "mhla/models/lm/head_loss.h",
]  # fmt: skip

PYTHON_API = """# Python API

The package `mhla`, made from its docstrings. [The guide](../docs/quickstart_pytorch.md) shows how the parts are used.

""" + "\n".join(
    f"::: mhla.{name}\n"
    for name in [
        "attention", "nn.MHLA", "replace_attention", "restore_attention", "StreamingState", "init_mix", "init_causal_mix",
        "resample_mix", "constrain_mix_", "constrain_", "constrain_after_step", "convert", "hf.MhlaForCausalLM", "hf.save_run",
        "set_backend", "get_backend", "set_num_threads", "get_num_threads",
    ]
)  # fmt: skip

CPP_API = """# C and C++ API

[The pages of the public headers](cpp/index.html), made by Doxygen. Start with one of these:

| header | what it has |
|---|---|
| [`mhla/kernels/bidirectional/bidirectional.h`](cpp/bidirectional_8h.html) | the operator over images, video and lines |
| [`mhla/kernels/chunkwise/chunkwise.h`](cpp/chunkwise_8h.html) | the causal operator |
| [`mhla/kernels/streaming/streaming.h`](cpp/streaming_8h.html) | the causal operator with a state, for generation |
| [`mhla/kernels/mixing/mixing.h`](cpp/mixing_8h.html) | the mixing matrix |
| [`mhla/c.h`](cpp/c_8h.html) | all of it from C |
| [`mhla/modules/mhla_attention.h`](cpp/mhla__attention_8h.html) | the layer for LibTorch |
| [`mhla/models/classify/classifier.h`](cpp/classifier_8h.html), [`mhla/models/lm/lm.h`](cpp/lm_8h.html) | whole models |

[The quickstart](../docs/quickstart_cpp.md) shows how they are used.
"""

DOXYFILE = """
PROJECT_NAME = mhla
PROJECT_BRIEF = "Multi-Head Linear Attention: public headers"
OUTPUT_DIRECTORY = {out}
HTML_OUTPUT = cpp
GENERATE_LATEX = NO
INPUT = {headers}
STRIP_FROM_PATH = {root}
INPUT_FILTER = "{python} {script} --doxygen"
EXTRACT_ALL = YES
JAVADOC_AUTOBRIEF = YES
MARKDOWN_SUPPORT = NO
AUTOLINK_SUPPORT = YES
HAVE_DOT = NO
CLASS_GRAPH = NO
SHOW_INCLUDE_FILES = NO
VERBATIM_HEADERS = NO
SORT_MEMBER_DOCS = NO
ENABLE_PREPROCESSING = YES
MACRO_EXPANSION = YES
EXPAND_ONLY_PREDEF = YES
PREDEFINED = __cplusplus TORCH_MODULE(x)= FORWARD_HAS_DEFAULT_ARGS(...)=
HTML_COLORSTYLE_HUE = 175
QUIET = YES
WARN_IF_UNDOCUMENTED = NO
WARN_IF_DOC_ERROR = NO
WARN_IF_INCOMPLETE_DOC = NO
"""


def comment_lines(texts: list[str], indent: str, marker: str, whole_file: bool) -> list[str]:
    """A run of our comments as one of Doxygen's; formulas, which are indented, keep their lines."""
    lines, formula = ["@file", ""] if whole_file else [], False
    for text in texts:
        if text.startswith("  ") != formula:
            formula = not formula
            lines.append("@verbatim" if formula else "@endverbatim")
        lines.append(text if formula else re.sub(r"([<>@\\#%])", r"\\\1", text))
    return [f"{indent}{marker} {line}" for line in lines + ["@endverbatim"] * formula]


def for_doxygen(path: Path) -> str:
    """A header with its // comments as Doxygen reads them: /// before what they describe, ///< after it."""
    lines: list[str] = []
    run: list[str] = []
    indent, trailing = "", None
    for line in [*path.read_text(encoding="utf-8").splitlines(), ""]:
        alone = re.match(r"(\s*)//(?!/) ?(.*)", line)
        if alone:
            run.append(alone.group(2))
            indent = alone.group(1)
            continue
        continues = trailing is not None and len(indent) >= trailing - 2
        lines += comment_lines(run, indent, "///<" if continues else "///", bool(run) and not lines)
        run = []
        behind = re.match(r"(.*[;,{}]\s*|\s*\w+\s+)// (.*)", line)
        trailing = len(behind.group(1)) if behind else None
        lines += comment_lines([behind.group(2).lstrip()], behind.group(1), "///<", False) if behind else [line]
    return "\n".join(lines) + "\n"


def tracked(*patterns: str) -> list[Path]:
    """Files that git knows or would add."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [Path(name) for name in names if (ROOT / name).exists()]


def copy_document(document: Path) -> None:
    def redirected(match: re.Match[str]) -> str:
        target, _, anchor = match.group(2).partition("#")
        if not target or "://" in target or target.startswith("mailto:"):
            return match.group(0)
        place = (ROOT / document.parent / target).resolve()
        if place.is_dir() and (place / "README.md").exists():
            target = f"{target.rstrip('/')}/README.md"
        elif place.is_file() and place.suffix != ".md":
            copy = SOURCE / place.relative_to(ROOT)
            if place.suffix not in IMAGES:
                copy, target = copy.with_name(copy.name + ".txt"), target + ".txt"
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(place, copy)
        return f"{match.group(1)}{target}{'#' + anchor if anchor else ''}{match.group(3)}"

    text = (ROOT / document).read_text(encoding="utf-8")
    parts = re.split(r"(```.*?```)", text, flags=re.DOTALL)  # code stays as it is
    parts = [part if part.startswith("```") else LINK.sub(redirected, part) for part in parts]
    copy = SOURCE / document
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text("".join(parts), encoding="utf-8")


def gather() -> None:
    for folder in (SOURCE, PYTHON):
        shutil.rmtree(folder, ignore_errors=True)
    for document in tracked("*.md"):
        if document.parts[0] != ".github":
            copy_document(document)
    (SOURCE / "assets").mkdir()
    shutil.copyfile(ROOT / "docs/site/iframe-worker.js", SOURCE / "assets/iframe-worker.js")
    (SOURCE / "api").mkdir()
    (SOURCE / "api/python.md").write_text(PYTHON_API, encoding="utf-8")
    (SOURCE / "api/cpp.md").write_text(CPP_API, encoding="utf-8")
    for module in tracked("python/mhla/*.py"):  # those of sub-packages too
        target = PYTHON / module.relative_to("python")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(ROLE.sub(r"`\1`", (ROOT / module).read_text(encoding="utf-8")), encoding="utf-8")


def run_doxygen() -> None:
    headers = sorted({str(path) for pattern in HEADERS for path in ROOT.glob(pattern)})
    config = DOXYFILE.format(
        out=SOURCE / "api", headers=" ".join(headers), root=ROOT, python=sys.executable, script=Path(__file__).resolve()
    )
    subprocess.run(["doxygen", "-"], input=config, text=True, cwd=ROOT, check=True)


def run_mkdocs() -> bool:
    """Whether the site was built without a warning. With --quiet, --strict would count none."""
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print("".join(line for line in (done.stdout + done.stderr).splitlines(True) if not line.startswith("INFO")))
    return done.returncode == 0


class Page(html.parser.HTMLParser):
    """What a page links to, and what it loads."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        loads = tag in ("script", "img", "iframe") or (tag == "link" and found.get("rel") in ("stylesheet", "icon"))
        for value in (found.get("href"), found.get("src")):
            if value:
                (self.loaded if loads else self.targets).append(value)


def check_pages() -> int:
    wrong = 0
    pages = sorted(SITE.rglob("*.html"))
    for path in pages:
        if path.name == "404.html":  # its links are absolute: it is for servers
            continue
        page = Page()
        page.feed(path.read_text(encoding="utf-8", errors="replace"))
        for target in page.targets + page.loaded:
            parts = urllib.parse.urlsplit(target)
            if parts.scheme or parts.netloc:
                if target in page.loaded and parts.scheme not in ("data", "javascript"):
                    print(f"site: {path.relative_to(SITE)}: loads {target} from the network")
                    wrong += 1
            elif parts.path and not (path.parent / urllib.parse.unquote(parts.path)).exists():
                print(f"site: {path.relative_to(SITE)}: {target} does not exist")
                wrong += 1
    print(f"site: {len(pages)} pages, {wrong} mistakes")
    return wrong


def main() -> int:
    if sys.argv[1:2] == ["--doxygen"]:
        sys.stdout.write(for_doxygen(Path(sys.argv[2])))
        return 0
    gather()
    run_doxygen()
    if not run_mkdocs():
        return 1
    return 1 if check_pages() else 0


if __name__ == "__main__":
    sys.exit(main())
