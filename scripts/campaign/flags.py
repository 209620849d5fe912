"""Command lines that are wrong: flags of every command, as its --help lists them, with values that nobody should give.

Numbers that only mean a long run (a billion steps) are left out, and so are output paths outside the folder of the case.
"""

import functools
import os
import re
import stat
import subprocess

import seeds as seed_inputs

NUMBERS = ["-1", "0", "-0", "1.5", "1e3", "1e400", "-1e400", "nan", "inf", "0x10", "1,5", "\u0661", "+", "1 2", "1e-400",
           "2147483648", "-2147483649", "4294967296", "9223372036854775807", "9223372036854775808", "18446744073709551616",
           "1" * 400]  # fmt: skip
WORDS = ["", " ", "x", "none", "null", "true", "{}", "[1", "mhla;softmax", "%s%n%s", "../..", "a" * 100_000, b"\xff\xfe",
         "\u00e9\U0001f600", "a\nb", "\x1b[31m", "cuda", "cuda:99", "--", "-", "=", "-1"]  # fmt: skip
# More of these is more work and no mistake: only values that are no number of things.
WORK = {"--epochs", "--max-steps", "--max-tokens", "--accumulate", "--items", "--repeats"}
OUTPUTS = {"--out", "--save-state", "--tokens", "--html", "--report", "--csv"}
# --set: fields of a model, and what they could be taken for.
FIELDS = ["dim", "dims", "layers", "depths", "heads", "mlp", "mlp_ratio", "vocab", "context", "chunk", "image", "patch", "classes",
          "channels", "blocks", "lepe", "cpe", "mix_range", "mix_init", "dropout", "drop_path", "kv_heads", "expand_k", "short_conv",
          "norm_eps", "rope_base", "family", "model", "attention", "unknown", ""]  # fmt: skip
VALUES = ["0", "-1", "1000000000", "9223372036854775807", "1e308", "[]", "[[]]", "[0]", "[-1]", "[1000000000]", "[16,16]",
          "null", "true", '"x"', "x", "{}", "[1000000000,1000000000]", "0.1", "nan", "", "[" * 1000]  # fmt: skip


PLACES = {("inspect",): 1, ("convert",): 2}  # paths after the command: in, out


def commands(case):
    """Valid command lines that end soon; `mhla help` has others, which take minutes."""
    at, out = case.seeds.path, case.out()
    return [
        ["inspect", at("plain")],
        ["inspect", "--values", at("state.safetensors")],
        ["data", "info", "--data", at("images")],
        ["data", "info", "--data", at("tokens")],
        ["data", "tokenize", "--data", at("text.txt"), "--tokenizer", "bytes", "--out", out],
        ["verify", "--golden", at("golden/lm_layer.safetensors")],
        ["convert", at("plain"), out],
        ["predict", "--run", at("plain"), at("images/val/rows")],
        ["export", "--run", at("plain"), "--out", case.out("made.onnx")],
        ["eval", "classify", "--run", at("classifier"), "--threads", "1"],
        ["eval", "lm", "--run", at("lm"), "--threads", "1"],
        ["generate", "--run", at("lm"), "--prompt", "a", "--max-tokens", "2", "--threads", "1"],
        ["train", "classify", *seed_inputs.TINY_CLASSIFIER, "--data", at("images"), "--out", out, "--max-steps", "1"],
        ["train", "lm", *seed_inputs.TINY_LM, "--data", at("text.jsonl"), "--tokenizer", "bytes", "--out", out,
         "--max-steps", "1"],
        ["bench", "op", "--b", "1", "--h", "1", "--d", "8", "--grid", "4x4", "--blocks", "2x2"],
        ["analyze", "--run", at("classifier"), "--out", out, "--threads", "1"],
    ]  # fmt: skip


@functools.cache
def flags_of(mhla, command):
    """The flags of a command, and whether each takes a value."""
    text = subprocess.run([mhla, *command, "--help"], capture_output=True, text=True).stdout
    found = re.findall(r"^ +(?:-\w,)?(--[\w-]+)(?:,-+[\w-]+(?:\{\w*\})?)*((?: [A-Z\[(:{]\S*)?)", text, re.MULTILINE)
    return sorted((name, bool(kind)) for name, kind in found if name != "--help")


def command_name(words):
    two = words[0] in ("data", "eval", "train", "bench")
    return tuple(words[: 2 if two else 1])


def bad_inputs(case):
    """Paths to read from."""
    folder = case.folder
    (folder / "empty").write_bytes(b"")
    (folder / "empty folder").mkdir(exist_ok=True)
    if not os.path.islink(folder / "loop"):
        (folder / "loop").symlink_to("loop")
    return ["/proc/none/x", str(folder), str(folder / "empty"), str(folder / "empty folder"), str(folder / "loop"), "/dev/null",
            "/dev/zero", "/dev/urandom", "/proc/self/mem", "/proc/self/exe", "/proc/self/environ", str(folder / ("a" * 300)),
            "/" + "a/" * 3000, str(folder / "empty") + "/x", "a\nb", ".", "..", "/", "", "~", "file:///x", "-"]  # fmt: skip


def bad_outputs(case):
    """Paths to write to, all in the folder of the case. A device is a node of our own: that of the system stays whole."""
    folder = case.folder
    (folder / "file").write_bytes(b"something of the user's")
    (folder / "full folder").mkdir(exist_ok=True)
    (folder / "full folder" / "file").write_bytes(b"something of the user's")
    for name, to in (("dangling", "nowhere"), ("around", "around"), ("linked", "file")):
        if not os.path.islink(folder / name):
            (folder / name).symlink_to(to)
    paths = [str(folder / name) for name in ("file", "full folder", "file/x", "dangling", "around", "linked", "a" * 300, "a b\n",
                                             "new/er/est")]  # fmt: skip
    try:
        os.mknod(folder / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        os.mknod(folder / "full", stat.S_IFCHR | 0o666, os.makedev(1, 7))
        paths += [str(folder / "null"), str(folder / "full")]
    except OSError:
        pass  # not root, or made already
    return [*paths, "/proc/none/x", "", "/dev/null/x", str(folder / ("a/" * 3000))]


def value_of(case, flag):
    rng = case.rng
    if flag in OUTPUTS:
        return rng.choice(bad_outputs(case))
    if flag == "--set":
        return f"{rng.choice(FIELDS)}{rng.choice(['=', '=', '=', '', '=='])}{rng.choice(VALUES)}"
    if flag in WORK or case.words[:1] == ["bench"]:
        return rng.choice(["-1", "0", "1.5", "1e3", "1e400", "nan", "inf", "0x1", "x", "", "+", "9223372036854775808"])
    return rng.choice([*NUMBERS, *WORDS, *bad_inputs(case)])


def wrong_words(case):
    """A command line, and what is wrong with it."""
    rng = case.rng
    words = [os.fspath(word) for word in rng.choice(commands(case))]
    case.words, name = words, command_name(words)
    known = flags_of(case.seeds.mhla, name)
    how = rng.choice(["value"] * 8 + ["given"] * 3 + ["no value", "unknown", "misspelt", "extra", "missing", "twice", "equals"])
    flag, takes = rng.choice(known)
    with_value = [one for one, has in known if has] or ["--json"]
    given = [i for i, word in enumerate(words[:-1]) if word.startswith("--") and word in with_value]
    shown = slice(-2, None)
    if name in PLACES and rng.random() < 0.4:  # the paths that have no flag
        how, at = "place", rng.randrange(1, 1 + PLACES[name])
        words[at] = rng.choice(bad_outputs(case) if at == 2 else bad_inputs(case))
        shown = slice(at, at + 1)
    elif how == "value":
        flag = rng.choice(with_value)
        words += [flag, value_of(case, flag)]
    elif how == "given" and given:  # instead of a value that is right
        at = rng.choice(given)
        flag = words[at]
        words[at + 1] = value_of(case, flag)
        shown = slice(at, at + 2)
    elif how == "no value":
        words.append(rng.choice(with_value))
    elif how == "unknown":
        words += [rng.choice(["--nope", "--" + "x" * 5000, "-x", "---", "--threads-", "--\u00e9", "--=1"]), "1"]
    elif how == "misspelt":
        at = rng.choice([i for i, word in enumerate(words) if not word.startswith("/")])  # no folder outside the case
        words[at] = words[at] + words[at][-1:] if rng.random() < 0.5 else words[at][:1] + words[at][2:]
        shown = slice(at, at + 1)
    elif how == "extra":
        words.insert(rng.randrange(len(words) + 1), rng.choice(["x", "", "--", "a" * 100_000, "-", "\n"]))
    elif how == "missing":
        del words[rng.randrange(len(words))]
    elif how == "twice" and takes:
        words += [flag, "1", flag, "2"]
    elif how == "equals":
        words.append(f"{flag}={rng.choice(['', '1', 'x'])}")
    return words, f"{how}: {' '.join(str(word)[:60] for word in words[shown])}"
