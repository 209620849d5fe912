"""Texts for tokenizer_check.py: English, and what is hard about Unicode."""
import random
import unicodedata

SPECIAL = ["<|endoftext|>", "<|startoftext|>", "<s>", "</s>", "<unk>", "[CLS]", "[MASK]", "<word>", "<Word>", "<tool>"]
HARD = [
    "it's we'll I'VE he'\u017f they'RE o'clock", "a  b   c\t\td", "line\n\nline\r\nline\n  ", "   ", "\n", " \n \n  x",
    "caf\u00e9 cafe\u0301 \u00c5ngstr\u00f6m A\u030a \u212b \u1e9b\u0323 \u0344", "\ufb01\ufb03 \u00bd \u2460 \u33a5 \uff21\uff42\uff13",
    "\ud55c\uad6d\uc5b4 \u1112\u1161\u11ab \u3131", "\u4e2d\u6587\u5b57\u7b26\u3002\u30ab\u30bf\u30ab\u30ca \u3042\u3044 \u3000x", "\u0130stanbul I\u0131 \u03a3\u03b1\u03c2 \u1e9e \u00df \u01c5",
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \U0001f44d\U0001f3fd", "\u0645\u0631\u062d\u0628\u0627 \u0661\u0662\u0663 \u05e9\u05b8\u05dc\u05d5\u05b9\u05dd", "\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22 \u0939\u093f\u0928\u094d\u0926\u0940",
    "x=12345;y=3.14159e-10 0x1F 1,000,000 \u00b2\u00b3\u00b9\u00bc", "def f(x):\n    return x**2  # squared\n", "\u2581a\u2581\u2581b \u2581", "\x00\x01\x1b[0m\x7f\x85\xa0\u1680\u180e\u200b\u2028\ufeff\ufffd",
    "word</w> </w> ##ing <0x41><0xE4> <0xZZ>", "(parens [brackets] {braces}) ... --- \u2014 \u201cquoted\u201d \u00a1\u00bf", "a" * 100, " " * 40 + "x", "\u0301\u0302 a\u0301\u0327\u0300b",
    "http://a.b/c?d=e&f=g#h me@x.org $5.00 50% a_b-c", "\u1e0b\u0323 \u0041\u0345\u0301 \u03b1\u0345\u0313", "\u1100\u1161\u11a8\u1100", "\u0958 \u2adc \ufb1d \U0001d15e \ufa10",
]


# Alphabetic in the Unicode of Oniguruma, and not yet in that of PCRE2 10.42.
NEWLY_ALPHABETIC = {*range(0x363, 0x370), 0xC04, 0xF82, 0xF83, *range(0x1DD3, 0x1DE7), 0x11080, 0x11081}


def assigned():
    return [c for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co") and c not in NEWLY_ALPHABETIC]


def every_character():
    """Every assigned character, between letters: 64 to a text."""
    codes = assigned()
    return ["a".join(map(chr, codes[i : i + 64])) for i in range(0, len(codes), 64)]


class Texts:
    def __init__(self, prose, seed):
        self.prose = prose
        self.random = random.Random(seed)
        self.assigned = assigned()
        self.low = [c for c in self.assigned if c < 0x3000]
        self.marks = [c for c in self.assigned if unicodedata.category(chr(c))[0] == "M"]

    def one(self, longest):
        pick = self.random
        kind = pick.randrange(10)
        if kind < 3:
            at = pick.randrange(len(self.prose) - longest)
            return self.prose[at : at + pick.randrange(1, longest)]
        if kind == 3:
            return "".join(chr(pick.choice(self.low)) for _ in range(pick.randrange(1, 30)))
        if kind == 4:
            return "".join(chr(pick.choice(self.assigned)) for _ in range(pick.randrange(1, 20)))
        if kind == 5:
            return "".join(pick.choice("aeiouAEIOU\u00e9\u0391\u1100 ") + "".join(chr(pick.choice(self.marks)) for _ in range(pick.randrange(3)))
                           for _ in range(pick.randrange(1, 12)))
        if kind == 6:
            return "".join(pick.choice([" ", "  ", "\n", "\t", "\r\n", "\u00a0", "\u3000", "a", "B1", "...", "'s", "\u2581"]) for _ in range(pick.randrange(1, 25)))
        if kind == 7:
            parts = [pick.choice(SPECIAL + ["word", "Word", " ", "  ", "x", "\n", "7", ".", "caf\u00e9"]) for _ in range(pick.randrange(1, 10))]
            return "".join(parts)
        if kind == 8:
            return pick.choice(HARD) + pick.choice(["", " ", "\n"]) + pick.choice(HARD)
        return pick.choice(HARD)

    def some(self, count, longest=300):
        return ["", *HARD, *SPECIAL][:count] + [self.one(longest) for _ in range(count - len(HARD) - len(SPECIAL) - 1)]
