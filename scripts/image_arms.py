"""The arms of the image experiments: what image_runs.py trains, in one table, and how long that takes."""

import dataclasses
import json
import shlex


@dataclasses.dataclass(frozen=True)
class Arm:
    """One model: flags of `mhla train diffusion`. With `base`, it starts from the averaged weights of that arm (the same
    seed), which `mhla convert` gets `convert` to turn into another model first. `seeds`: only these, all if empty."""

    flags: str
    base: str = ""
    convert: str = ""
    seeds: str = ""

    def has(self, seed):
        return not self.seeds or seed in self.seeds.split(",")


MHLA = "--attention mhla"
UNIFORM = "--set mix_init=uniform"
FROZEN = "--set learn_mix=false"
# Fine-tuning: a constant learning rate, so that every step of the curve is a result by itself, and an average short
# enough to follow it (200 steps).
TUNE = "--schedule constant --lr 3e-4 --warmup-steps 100 --ema 0.995"

ARMS = {
    "softmax": Arm("--attention softmax"),
    "linear": Arm("--attention linear"),
    "mhla": Arm(MHLA),
    "mhla-uniform": Arm(f"{MHLA} {UNIFORM} {FROZEN}"),
    "mhla-cpe": Arm(f"{MHLA} --variant cpe"),
    # Table 12 of the paper: none is mhla, cpe is mhla-cpe.
    "mhla-gate": Arm(f"{MHLA} --variant gate"),
    "mhla-both": Arm(f"{MHLA} --variant both"),
    # M; 16 is mhla.
    "mhla-m4": Arm(f"{MHLA} --set blocks=[2,2]"),
    "mhla-m64": Arm(f"{MHLA} --set blocks=[8,8]"),
    # Table 7: the mixing matrix begins local (mhla) or uniform and learns or stays; uniform and frozen is mhla-uniform.
    "mhla-local-frozen": Arm(f"{MHLA} {FROZEN}"),
    "mhla-uniform-learned": Arm(f"{MHLA} {UNIFORM}"),
    # Fast adaptation, Table 3b, with its controls.
    # A training without --attention has MHLA, whatever it starts from: it is named even where it stays.
    "softmax-to-mhla": Arm(f"{MHLA} {TUNE}", "softmax", MHLA),
    "softmax-to-linear": Arm(f"--attention linear {TUNE}", "softmax", "--attention linear"),
    "softmax-on": Arm(f"--attention softmax {TUNE}", "softmax"),
    "linear-to-mhla": Arm(f"{MHLA} {UNIFORM} {TUNE}", "linear", MHLA),
    "linear-on": Arm(f"--attention linear {TUNE}", "linear"),
    "mhla-scratch": Arm(f"{MHLA} {TUNE}"),
}

PARTS = {
    "main": ["softmax", "linear", "mhla", "mhla-uniform", "mhla-cpe"],
    "adapt": ["softmax-to-mhla", "softmax-on", "linear-to-mhla", "softmax-to-linear", "linear-on", "mhla-scratch"],
    "ablate": ["mhla-both", "mhla-gate", "mhla-m4", "mhla-m64", "mhla-uniform-learned", "mhla-local-frozen"],
}

BASES = sorted({arm.base for arm in ARMS.values() if arm.base})

# Classifiers whose features the samples are compared in, over recipes/vit_256_conv.json.
JUDGES = {
    "conv": "--attention mhla",  # LePE 5x5 and CPE 3x3 in every block
    "softmax": "--attention softmax --set lepe=0 --set cpe=0",
}


def chosen(words):
    """{name: Arm} of parts, arms and NAME=FLAGS, in their order; PART@SEEDS and ARM@SEEDS have only these seeds."""
    arms = {}
    for word in words:
        name, equal, flags = word.partition("=")
        if equal:
            arms[name] = Arm(flags)
            continue
        name, _, seeds = word.partition("@")
        if name in PARTS or name in ARMS:
            arms.update({one: dataclasses.replace(ARMS[one], seeds=seeds) for one in PARTS.get(name, [name])})
        else:
            raise SystemExit(f"image_runs: '{word}' is no part ({', '.join(PARTS)}), arm ({', '.join(ARMS)}) or NAME=FLAGS")
    return arms


def grouped(words):
    """The arms between the words `then`, an arm in the first group that has it."""
    groups, known = [[]], set()
    for word in words:
        if word == "then":
            groups.append([])
        else:
            groups[-1].append(word)
    found = []
    for group in groups:
        arms = {name: arm for name, arm in chosen(group).items() if name not in known}
        known.update(arms)
        found.append(arms)
    return found


def in_order(groups, seeds):
    """(arm, seed) as they are begun: group by group, in each seed by seed."""
    return [(name, seed) for group in groups for seed in seeds for name, arm in group.items() if arm.has(seed)]


def steps_of(name, options):
    return options.adapt_steps if name in PARTS["adapt"] else options.steps


def print_plan(arms, options, done):
    """What is left and how long it takes, by part, at options.rate images a second."""
    batch = json.loads(open(options.config).read()).get("batch", 256)
    passes = 3 * options.rate  # a pass without gradients takes about a third of a training step
    total = 0.0
    print(f"at {options.rate:.0f} images/s in training, all jobs together, and {passes:.0f} passes/s in sampling:")
    groups = {part: [name for name in arms if name in members] for part, members in PARTS.items()}
    groups["other"] = [name for name in arms if not any(name in members for members in PARTS.values())]
    for part, names in groups.items():
        if not names:
            continue
        wanted = in_order([{name: arms[name] for name in names}], options.seeds.split(","))
        left = [key for key in wanted if key not in done]
        train = sum(steps_of(name, options) for name, _ in left) * batch / options.rate
        sample = len(left) * options.samples * options.sampler_steps / passes
        total += train + sample
        print(f"  {part:7} {len(left):3} runs left of {len(wanted)}: training {train / 60:5.1f} min,"
              f" samples {sample / 60:4.1f} min; {', '.join(names)}")
    epochs = options.judge_epochs * len(JUDGES) * 50_000 / 25_000  # vit_256 with batch 128
    missing = ("judges", "") not in done
    print(f"  judges  {epochs / 60 if missing else 0:5.1f} min (two classifiers at 25,000 images/s)")
    print(f"  in all  {(total + (epochs if missing else 0)) / 60:5.1f} min")


def split(text):
    return shlex.split(text)
