"""The kinds of a campaign: which input is changed, and which commands read it.

A case has a folder of its own with copies of the inputs it needs; one of them is changed, then one command runs. Commands
that answer without LibTorch come more often where both would meet the change: they start in a tenth of the time.
"""

import os
import pathlib
import random
import shutil

import flags
import formats
import seeds as seed_inputs


class Case:
    """One case: `words` is the command line when its kind has been called."""

    def __init__(self, seeds, folder, seed, number):
        self.seeds, self.folder = seeds, pathlib.Path(folder)
        self.rng = random.Random(f"{seed}:{number}")
        self.number, self.kind, self.did, self.words = number, "", "", []

    def copy(self, name):
        """A copy of an input in the folder of the case."""
        to = self.folder / name
        if not to.exists():
            to.parent.mkdir(parents=True, exist_ok=True)
            source = self.seeds.path(name)
            shutil.copytree(source, to, symlinks=True) if source.is_dir() else shutil.copyfile(source, to)
        return to

    def out(self, name="made"):
        return self.folder / name

    def change(self, path):
        """Changes a file; now and then in a way that any file may be found in."""
        if self.rng.random() < 0.06:
            how = self.rng.choice(["missing", "folder", "loop", "link", "shut"])
            self.did = f"{path.name}: is {how}"
            content = path.read_bytes()
            path.unlink()
            if how == "folder":
                path.mkdir()
            elif how == "loop":
                path.symlink_to(path.name)
            elif how == "link":  # through which the file is still there
                other = path.with_name("elsewhere-" + path.name)
                other.write_bytes(content)
                path.symlink_to(other.name)
            elif how == "shut":  # root reads it all the same
                path.write_bytes(content)
                path.chmod(0)
        else:
            self.did = formats.edit_file(path, self.rng)
        return path

    def choose(self, *commands):
        self.words = [os.fspath(word) for word in self.rng.choice(commands)]


# ---- Commands

ONE = ["--threads", "1"]


def eval_classifier(run, *more):
    return ["eval", "classify", "--run", run, *ONE, *more]


def eval_lm(run, *more):
    return ["eval", "lm", "--run", run, *ONE, *more]


def predict(run, *images):
    return ["predict", "--run", run, *ONE, *images]


def export(case, run, *more):
    return ["export", "--run", run, "--out", case.out("made.onnx"), *more]


def generate(run, *more):
    return ["generate", "--run", run, "--prompt", "the sea", "--max-tokens", "4", *ONE, *more]


def without(words, flag):
    at = words.index(flag)
    return words[:at] + words[at + 2 :]


def train_classifier(case, *more, data=None):
    words = seed_inputs.TINY_CLASSIFIER
    if "--model" in more:
        words = ["--batch", "8", *ONE]  # a file says all of the model
    data = data or case.seeds.path("images")
    return ["train", "classify", *words, "--data", data, "--out", case.out(), "--max-steps", "1", *more]


def train_lm(case, *more, data=None):
    data = data or case.seeds.path("tokens")
    words = seed_inputs.TINY_LM
    if "--model" in more:
        words = ["--batch", "4", *ONE, "--context", "64", "--valid", "0.1", "--warmup-steps", "1"]
    if pathlib.Path(data).is_dir():  # tokens have their part that is held out
        words = without(words, "--valid")
    return ["train", "lm", *words, "--data", data, "--out", case.out(), "--max-steps", "1", *more]


# ---- Kinds


def safetensors(case):
    which = case.rng.choice(["classifier", "lm", "plain", "published", "golden", "state"])
    if which == "classifier":
        run = case.copy("classifier")
        file = case.change(run / case.rng.choice(["model.safetensors"] * 3 + ["ema.safetensors", "best.safetensors"]))
        weights = ["--weights", file.stem]
        case.choose(["inspect", file], ["inspect", "--values", run], eval_classifier(run, *weights), export(case, run, *weights),
                    ["convert", run, case.out()], ["analyze", "--run", run, "--out", case.out(), *ONE],
                    predict(run, case.seeds.path("images/val/rows")), train_classifier(case, "--init", file))  # fmt: skip
    elif which == "lm":
        run = case.copy("lm")
        file = case.change(run / "model.safetensors")
        case.choose(["inspect", "--values", "--json", file], eval_lm(run), generate(run), generate(run, "--exact"),
                    train_lm(case, "--init", run),
                    ["convert", run, case.out("made.safetensors"), "--to", "published"])  # fmt: skip
    elif which == "plain":
        run = case.copy("plain")
        case.change(run / "model.safetensors")
        case.choose(["inspect", run], eval_classifier(run, "--data", case.seeds.path("images")),
                    ["convert", run, case.out(), "--image", "56x56"], ["convert", run, case.out(), "--blocks", "2x2"])  # fmt: skip
    elif which == "published":
        file = case.change(case.copy("published.safetensors"))
        config = case.seeds.path("classifier/config.json")
        case.choose(["inspect", file], ["convert", file, case.out(), "--config", config],
                    ["convert", file, case.out("layers.safetensors")])  # fmt: skip
    elif which == "golden":
        names = sorted(path.name for path in case.seeds.path("golden").iterdir())
        file = case.change(case.copy("golden/" + case.rng.choice(names)))
        case.choose(["verify", "--golden", file], ["inspect", "--values", file])
    else:
        file = case.change(case.copy("state.safetensors"))
        run = case.seeds.path("lm")
        case.choose(["inspect", file], generate(run, "--load-state", file),
                    ["generate", "--run", run, "--max-tokens", "4", *ONE, "--load-state", file])  # fmt: skip


def config(case):
    if case.rng.random() < 0.5:
        run = case.copy(case.rng.choice(["classifier", "plain"]))
        file = case.change(run / "config.json")
        data = ["--data", case.seeds.path("images")] if run.name == "plain" else []
        case.choose(["inspect", run], eval_classifier(run, *data), ["convert", run, case.out()], export(case, run),
                    predict(run, case.seeds.path("images/val/rows")), train_classifier(case, "--init", run),
                    ["convert", case.seeds.path("published.safetensors"), case.out(), "--config", file],
                    train_classifier(case, "--model", file))  # fmt: skip
    else:
        run = case.copy("lm")
        file = case.change(run / "config.json")
        case.choose(["inspect", run], eval_lm(run), generate(run), train_lm(case, "--model", file))


def train(case):
    if case.rng.random() < 0.5:
        run = case.copy("classifier")
        file = case.change(run / "train.json")
        case.choose(eval_classifier(run), ["train", "classify", "--resume", "--out", run, "--max-steps", "5", *ONE],
                    train_classifier(case, "--config", file), ["analyze", "--run", run, "--out", case.out(), *ONE])  # fmt: skip
    else:
        run = case.copy("lm")
        file = case.change(run / "train.json")
        case.choose(eval_lm(run), generate(run), train_lm(case, "--config", file),
                    ["train", "lm", "--resume", "--out", run, "--max-steps", "5", *ONE])  # fmt: skip


def preprocess(case):
    """What evaluation needs beside the weights: it goes with a model."""
    run = case.copy(case.rng.choice(["classifier", "plain", "lm"]))
    case.change(run / "preprocess.json")
    if run.name == "lm":
        case.choose(generate(run), eval_lm(run), ["convert", run, case.out()])
    else:
        case.choose(eval_classifier(run, "--data", case.seeds.path("images")), predict(run, case.seeds.path("images/val/rows")),
                    export(case, run, "--with-normalize"), ["convert", run, case.out()])  # fmt: skip


def tokenizer(case):
    folder = case.copy(case.rng.choice(["tokens", "lm"]))
    file = case.change(folder / "tokenizer.json")
    tokenize = ["data", "tokenize", "--data", case.seeds.path("text.jsonl"), "--tokenizer", file, "--out", case.out()]
    if folder.name == "tokens":
        case.choose(["data", "info", "--data", folder], tokenize, train_lm(case, data=folder))
    else:
        case.choose(generate(folder), eval_lm(folder), tokenize)


def dataset(case):
    folder = case.copy("tokens")
    case.change(folder / "dataset.json")
    info = ["data", "info", "--data", folder]
    case.choose(info, info, train_lm(case, data=folder), eval_lm(case.seeds.path("lm"), "--data", folder))


def shards(case):
    folder = case.copy("tokens")
    case.change(case.rng.choice(sorted(folder.glob("*.tokens"))))
    info = ["data", "info", "--data", folder]
    case.choose(info, info, train_lm(case, data=folder), train_lm(case, "--no-check-tokens", data=folder))


def classes(case):
    run = case.copy(case.rng.choice(["classifier", "plain"]))
    if not (run / "classes.json").exists():
        shutil.copyfile(case.seeds.path("classifier/classes.json"), run / "classes.json")
    case.change(run / "classes.json")
    resume = ["train", "classify", "--resume", "--out", run, "--max-steps", "5", *ONE]
    images = ["--data", case.seeds.path("images")]
    case.choose(eval_classifier(run, *images), ["convert", run, case.out()], predict(run, images[1] / "val/rows"),
                *([resume] if run.name != "plain" else []))  # fmt: skip


def checkpoints(case):
    task = case.rng.choice(["classify", "lm"])
    run = case.copy("classifier" if task == "classify" else "lm")
    steps = sorted((run / "checkpoints").iterdir())
    chosen = steps if case.rng.random() < 0.4 else [steps[-1]]
    name = case.rng.choice(sorted(path.name for path in steps[-1].iterdir()))
    fits = case.rng.random() < 0.6
    for step in chosen:
        case.change(step / name)
        if fits:
            formats.seal_checkpoint(step)
    case.did += f", {len(chosen)} of {len(steps)} checkpoints" + (", checksums fit" if fits else "")
    if case.rng.random() < 0.5:
        (run / "model.safetensors").unlink()
    resume = ["train", task, "--resume", "--out", run, "--max-steps", "5", *ONE]
    case.choose(resume, resume, eval_classifier(run) if task == "classify" else generate(run))


def images(case):
    if case.rng.random() < 0.3:
        folder = case.copy("idx")
        case.change(case.rng.choice(sorted(folder.iterdir())))
        data = f"mnist:{folder}"
    else:
        folder = case.copy("images")
        files = sorted(folder.rglob("*.*"))
        for file in case.rng.sample(files, case.rng.choice([1, 1, 3, len(files)])):
            case.change(file)
        data = folder
    info = ["data", "info", "--data", data]
    others = [train_classifier(case, data=data)]
    if data == folder:
        others.append(eval_classifier(case.seeds.path("classifier"), "--data", data))
        others.append(predict(case.seeds.path("classifier"), folder))
    case.choose(info, info, *others)


def text(case):
    name = case.rng.choice(["text.jsonl", "text.txt", "prompts.txt"])
    file = case.change(case.copy(name))
    if name == "prompts.txt":
        case.choose(["generate", "--run", case.seeds.path("lm"), "--prompts", file, "--max-tokens", "2", *ONE])
    else:
        kind = case.rng.choice(["bytes", "train:300", case.seeds.path("tokens/tokenizer.json")])
        case.choose(["data", "tokenize", "--data", file, "--tokenizer", kind, "--valid", "0.1", "--out", case.out()])


def options(case):
    """Flags that are wrong, beside those that are right."""
    case.words, case.did = flags.wrong_words(case)


# Kind and its share of the cases.
KINDS = {
    safetensors: 18, config: 10, train: 10, tokenizer: 8, dataset: 6, shards: 6, classes: 5, checkpoints: 10, images: 9,
    text: 4, preprocess: 4, options: 14,
}  # fmt: skip
NAMES = {kind.__name__: kind for kind in KINDS} | {"flags": options}


def make(seeds, folder, seed, number, only=None):
    """The case of a number: the same for the same seed and inputs."""
    case = Case(seeds, folder, seed, number)
    kind = NAMES[only] if only else case.rng.choices(list(KINDS), list(KINDS.values()))[0]
    case.kind = "flags" if kind is options else kind.__name__
    shutil.rmtree(case.folder, ignore_errors=True)
    case.folder.mkdir(parents=True)
    kind(case)
    return case
