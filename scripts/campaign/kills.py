"""kill -9 at random times, then the same command again: every run completes, with the bits of one that nobody killed.

A scenario is a command that writes. It is run once undisturbed, for its time and the checksums of what it makes. A round
kills it several times, at moments drawn over its whole length with most of them in the part that writes, looks at what is
there after each kill, and lets it complete in the end: same checksums, nothing finished lost, no partial file left.
"""

import dataclasses
import hashlib
import pathlib
import random
import re
import shutil
import time

import program
import seeds as seed_inputs

COMPLETE_SECONDS = 600.0  # of a machine that is busy with other things


def checksum(path):
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


@dataclasses.dataclass
class Scenario:
    name: str
    words: object  # folder -> command line
    made: list  # names below the folder whose checksums must be those of the undisturbed run
    sign: str  # a file or folder: once it is there, the part that writes has begun
    prepare: object = None  # folder -> None: what is there before
    again: object = None  # folder -> command line that completes it; default: the same
    whole: object = None  # folder, references -> what is wrong between two kills; empty: nothing
    done: str = ""  # a refusal to do it once more, which is as good as done
    kills: int = 4  # of a round


def step_of(run):
    """The newest checkpoint under its final name."""
    steps = [int(path.name[5:]) for path in (run / "checkpoints").glob("step-*")]
    return max(steps, default=0)


def scenarios(seeds):
    at = seeds.path
    classify = lambda folder: ["train", "classify", *seed_inputs.TINY_CLASSIFIER, "--data", str(at("images")), "--out",
                               str(folder / "run"), "--max-steps", "12", "--checkpoint-every", "1", "--keep", "2", "--ema", "0.5",
                               "--resume"]  # fmt: skip
    lm = lambda folder: ["train", "lm", *seed_inputs.TINY_LM, "--data", str(at("text.jsonl")), "--tokenizer", "train:300", "--out",
                         str(folder / "run"), "--max-steps", "12", "--checkpoint-every", "1", "--keep", "2",
                         "--resume"]  # fmt: skip
    diffusion = lambda folder: ["train", "diffusion", *seed_inputs.TINY_DENOISER, "--data", str(at("images")), "--out",
                                str(folder / "run"), "--max-steps", "12", "--checkpoint-every", "1", "--keep", "2",
                                "--resume"]  # fmt: skip
    tokenize = lambda folder: ["data", "tokenize", "--data", str(at("long.txt")), "--tokenizer", str(at("tokens/tokenizer.json")),
                               "--valid", "0.1", "--shard-tokens", "20000", "--out", str(folder / "tokens")]  # fmt: skip
    convert = lambda folder: ["convert", str(at("classifier")), str(folder / "model")]
    publish = lambda folder: ["convert", str(at("classifier")), str(folder / "made.safetensors"), "--to", "published"]
    export = lambda folder: ["export", "--run", str(at("classifier")), "--out", str(folder / "made.onnx")]
    save = lambda folder: ["generate", "--run", str(at("lm")), "--prompt", "the sea was", "--max-tokens", "16", "--greedy",
                           "--threads", "1", "--save-state", str(folder / "state.safetensors")]  # fmt: skip

    def old_state(folder):
        shutil.copyfile(at("state.safetensors"), folder / "state.safetensors")

    def old_or_new(folder, references):
        now = checksum(folder / "state.safetensors")
        ok = now in (references["state.safetensors"], checksum(at("state.safetensors")))
        return "" if ok else "the state is neither the old nor the new one"

    def old_file(folder):
        shutil.copyfile(at("state.safetensors"), folder / "made.safetensors")

    def old_or_published(folder, references):
        now = checksum(folder / "made.safetensors")
        ok = now in (references["made.safetensors"], checksum(at("state.safetensors")))
        return "" if ok else "the file is neither the old nor the new one"

    def sound_tokens(folder, references):
        """A folder with dataset.json is complete."""
        if not (folder / "tokens/dataset.json").exists():
            return ""
        return different(folder, references)

    return [
        Scenario("train classify", classify, ["run/model.safetensors", "run/ema.safetensors", "run/config.json", "run/classes.json"],
                 "run/checkpoints", kills=6),
        Scenario("train lm", lm, ["run/model.safetensors", "run/config.json", "run/tokenizer.json", "run/tokens/dataset.json"],
                 "run/tokens", kills=6),
        Scenario("train diffusion", diffusion, ["run/model.safetensors", "run/ema.safetensors", "run/generation.json",
                                                "run/samples/step-00000012.png"], "run/checkpoints", kills=6),
        Scenario("data tokenize", tokenize, [], "tokens", whole=sound_tokens, done="has a dataset.json already"),
        Scenario("convert", convert, ["model/model.safetensors", "model/config.json"], "model", done="--overwrite"),
        Scenario("convert to a file", publish, ["made.safetensors"], "made.safetensors.part", prepare=old_file,
                 whole=old_or_published),
        Scenario("export", export, ["made.onnx"], "made.onnx.part"),
        Scenario("save a state", save, ["state.safetensors"], "state.safetensors.part", prepare=old_state, whole=old_or_new),
    ]  # fmt: skip


def different(folder, references):
    """The first file that is not as the undisturbed run made it."""
    for name, want in references.items():
        if not (folder / name).exists():
            return f"{name} is missing"
        if checksum(folder / name) != want:
            return f"{name} is not what an undisturbed run makes"
    return ""


def is_there(folder, sign):
    if (folder / sign).exists():
        return True
    return bool(list((folder / sign).parent.glob(pathlib.Path(sign).name + "*")))


def wait_for(process, folder, sign, most):
    """Until the sign is there, the program has ended, or `most` seconds have passed."""
    end = time.monotonic() + most
    while time.monotonic() < end and process.poll() is None and not is_there(folder, sign):
        time.sleep(0.001)


class Kills:
    def __init__(self, seeds, folder, seed):
        self.seeds, self.folder, self.seed = seeds, pathlib.Path(folder), seed
        self.scenarios = scenarios(seeds)
        self.references, self.seconds, self.writing = {}, {}, {}

    def measure(self):
        """Every scenario once, undisturbed: how long it takes and what it makes."""
        long = self.seeds.path("long.txt")
        if not long.exists():
            long.write_text(self.seeds.path("text.txt").read_text() * 150)
        for one in self.scenarios:
            folder = self.folder / f"undisturbed-{one.name.replace(' ', '-')}"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            if one.prepare:
                one.prepare(folder)
            began = time.monotonic()
            process = program.start(self.seeds.mhla, one.words(folder), folder)
            wait_for(process, folder, one.sign, COMPLETE_SECONDS)
            sign = time.monotonic() - began
            ended = program.finish(process, folder, COMPLETE_SECONDS) if process.returncode is None else None
            if (ended.code if ended else process.returncode) != 0:
                raise SystemExit(f"campaign: {one.name} failed without a kill:\n{program.text_of(folder / 'err')}")
            names = one.made
            if not names:  # all of a folder that is one thing
                names = sorted(str(path.relative_to(folder)) for path in (folder / one.sign).rglob("*") if path.is_file())
            self.references[one.name] = {name: checksum(folder / name) for name in names}
            self.seconds[one.name] = time.monotonic() - began
            self.writing[one.name] = max(0.01, self.seconds[one.name] - sign)

    def plan(self, kills):
        """Rounds as (number, scenario, kills) until there are enough kills."""
        rounds, planned = [], 0
        share = -(-kills // len(self.scenarios))  # few kills go to all of them
        while planned < kills:
            one = self.scenarios[len(rounds) % len(self.scenarios)]
            count = min(one.kills, share, kills - planned)
            rounds.append((len(rounds), one, count))
            planned += count
        return rounds

    def begin(self, one, folder):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if one.prepare:
            one.prepare(folder)

    def kill_once(self, one, folder, rng):
        """Starts the command and kills it. Returns its exit code, -9 when it was still running, and the moment."""
        process = program.start(self.seeds.mhla, one.words(folder), folder)
        if rng.random() < 0.8:  # into the part that writes
            wait_for(process, folder, one.sign, COMPLETE_SECONDS)
            after = rng.random() * self.writing[one.name]
        else:
            after = rng.random() * self.seconds[one.name]
        if process.returncode is None:
            program.finish(process, folder, COMPLETE_SECONDS, kill_after=after)
        return process.returncode, after

    def round(self, number, one, kills):
        """Kills a scenario so many times and completes it. Returns (kills, what is wrong).

        A command that was faster than its kill is judged, too; then all begins again."""
        rng = random.Random(f"{self.seed}:kill:{number}")
        folder = self.folder / f"round-{number:05}"
        references, hit = self.references[one.name], 0
        self.begin(one, folder)
        for _ in range(10 * kills):
            if hit == kills:
                break
            before = step_of(folder / "run")
            code, after = self.kill_once(one, folder, rng)
            hit += code == -9
            complaint = self.at_a_kill(one, folder, references, before, code)
            if not complaint and code != -9:
                complaint = self.at_the_end(folder, references)
            if complaint:
                return hit, f"after kill {hit}, {after:.3f} s: {complaint}"
            if code != -9:
                self.begin(one, folder)
        ended = program.run(self.seeds.mhla, one.words(folder), folder, COMPLETE_SECONDS)
        if ended.stopped or not self.completed(one, ended):
            return hit, f"does not complete: {ended.stopped or f'exit code {ended.code}: {ended.complaint}'}"
        if re.search("damaged|checksum|could not", ended.err):
            return hit, f"complains when it completes: {ended.err.strip()[:300]}"
        return hit, self.at_the_end(folder, references)

    @staticmethod
    def completed(one, ended):
        return ended.code == 0 or (ended.code == 2 and one.done and one.done in ended.err)

    def at_a_kill(self, one, folder, references, before, code):
        if code == 2 and not (one.done and one.done in program.text_of(folder / "err")):
            return f"refused: {program.text_of(folder / 'err').strip()[-300:]}"
        if code not in (0, 2, -9):
            return f"exit code {code}: {program.text_of(folder / 'err').strip()[-300:]}"
        if step_of(folder / "run") < before:
            return f"the newest checkpoint was of step {before}, now of {step_of(folder / 'run')}"
        return one.whole(folder, references) if one.whole else ""

    @staticmethod
    def at_the_end(folder, references):
        left = program.left_over(folder)
        return different(folder, references) or (f"left behind: {', '.join(left)}" if left else "")
