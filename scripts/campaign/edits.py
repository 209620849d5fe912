"""Changes to bytes and to JSON texts. Each takes the random generator of its case and returns what it did, as text.

JSON edits keep most of a file as it was, so that a reader gets deep into it before it meets the change.
"""

import json

# Written into a JSON text as they stand; some are no JSON at all.
RAW_VALUES = [
    "1e999", "-1e999", "NaN", "-Infinity", "-0", "01", "0x10", "1.", ".5", "1e", "+1", "9223372036854775808",
    "-9223372036854775809", "18446744073709551616", "1" * 400, "0." + "0" * 400 + "1", "tru", "nul", "'x'", "{]",
    '"\\ud800"', '"\\u0000"', '"\\x"', '"\x01"', '"' + "a" * 100_000 + '"', "[" * 50_000, '{"a":' * 50_000,
    "/* */ 1", "", ",",
]  # fmt: skip
# Sizes are tiny, wrong or beyond every limit: one that merely needs a large machine would be a valid model.
NUMBERS = [0, -1, -2, 1, 0.5, -0.5, 1.5, 2**31 - 1, 2**31, 2**32, 10**9, 2**40, 2**62, 2**63 - 1, -(2**63), 1e18, 1e308,
           1e-320, -1e308]  # fmt: skip
WORDS = ["", " ", "x", "mhla", "softmax", "none", "..", "/", "/proc/none/x", "a/b", "%s%n", "\u00e9\u4e2d\U0001f600",
         "x" * 5000, "a\nb", "a\tb", "\x1b[31m", "-1", "1", "null"]  # fmt: skip
TREES = [None, True, False, [], {}, [[]], [[], {}], {"": None}, [1, "x", None], [[1, 2], [3]]]


def edit_bytes(data, rng):
    """Bits turned, pieces cut out, doubled, overwritten or put in, the end cut off or grown."""
    data = bytearray(data)
    how = rng.choice(["bits", "bits", "cut", "grow", "overwrite", "remove", "repeat", "empty", "zeros", "ones"])
    at = rng.randrange(len(data)) if data else 0
    if rng.random() < 0.5:  # heads are short and decide most
        at = rng.randrange(min(len(data), 256)) if data else 0
    length = min(rng.choice([1, 2, 4, 8, 64, 1000]), len(data) - at)
    if how == "bits":
        for _ in range(rng.choice([1, 1, 2, 8, 64])):
            if data:
                data[rng.randrange(len(data)) if rng.random() < 0.5 else at] ^= 1 << rng.randrange(8)
    elif how == "cut":
        del data[at:]
    elif how == "grow":
        data += rng.randbytes(rng.choice([1, 8, 100, 100_000]))
    elif how == "overwrite":
        data[at : at + length] = rng.randbytes(length)
    elif how == "remove":
        del data[at : at + length]
    elif how == "repeat":
        data[at:at] = data[at : at + length] * rng.choice([1, 2, 50])
    elif how == "empty":
        data.clear()
    else:
        data[at : at + length] = (b"\0" if how == "zeros" else b"\xff") * length
    return bytes(data), f"bytes: {how} at {at}"


def places(tree, path=()):
    """The path of every value in a tree of JSON."""
    yield path
    children = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in children:
        yield from places(value, (*path, key))


def pick(tree, rng):
    """A path by levels, so that a long list does not hide the keys beside it."""
    path = []
    while isinstance(tree, (dict, list)) and tree and (not path or rng.random() < 0.85):
        key = rng.choice(list(tree)) if isinstance(tree, dict) else rng.randrange(len(tree))
        path.append(key)
        tree = tree[key]
    return path


def value_at(tree, path):
    for key in path:
        tree = tree[key]
    return tree


def other_value(old, rng):
    """In most cases of the same type: another type is refused by the first line that reads it."""
    if isinstance(old, bool):
        return rng.choice([not old, 0, "true", None])
    if isinstance(old, (int, float)) and rng.random() < 0.7:
        return rng.choice([*NUMBERS, old + 1, old - 1, -old, old * 1.0, old * 2])
    if isinstance(old, str) and rng.random() < 0.7:
        return rng.choice([*WORDS, old + "x", old[:-1], old.upper(), old[::-1], old + "\0"])
    if isinstance(old, list) and rng.random() < 0.7:
        return rng.choice([old + old, old[:-1], old[::-1], old[:1] * 1000, [], old + [None]])
    if isinstance(old, dict) and rng.random() < 0.7:
        return rng.choice([dict(reversed(list(old.items()))), dict(list(old.items())[1:]), {**old, "unknown": 1}, {}])
    return rng.choice(NUMBERS + WORDS + TREES)


def edit_json(text, rng):
    """One value, key or piece of syntax of a JSON text."""
    tree = json.loads(text)
    path = pick(tree, rng)
    how = rng.choice(["value"] * 6 + ["raw", "raw", "missing", "twice", "key", "swap", "utf8", "mark", "behind", "whole"])
    label = f"JSON: {how} at {'/'.join(map(str, path))}"
    raw = None
    parent = value_at(tree, path[:-1]) if path else None
    if how == "whole" or not path:
        tree, raw = "@raw@", rng.choice(RAW_VALUES + [json.dumps(value) for value in TREES + NUMBERS + WORDS])
    elif how == "value":
        parent[path[-1]] = other_value(parent[path[-1]], rng)
        label += f" = {json.dumps(parent[path[-1]])[:60]}"
    elif how == "raw":
        parent[path[-1]], raw = "@raw@", rng.choice(RAW_VALUES)
        label += f" = {raw[:40]!r}"
    elif how == "missing":
        del parent[path[-1]]
    elif how in ("twice", "key") and isinstance(parent, dict):
        old = parent[path[-1]]
        if how == "key":
            del parent[path[-1]]
            parent[rng.choice([path[-1] + "x", "", "\u00e9", path[-1].upper(), "x" * 70_000])] = old
        else:
            parent[path[-1]], raw = "@raw@", json.dumps(old) + f", {json.dumps(path[-1])}: {json.dumps(old)}"
    elif how == "swap":
        other = pick(tree, rng)
        if other and other[: len(path)] != path and path[: len(other)] != other:
            a, b = value_at(tree, path), value_at(tree, other)
            value_at(tree, path[:-1])[path[-1]], value_at(tree, other[:-1])[other[-1]] = b, a
    data = json.dumps(tree, indent=rng.choice([None, 1]), ensure_ascii=rng.random() < 0.5)
    if raw is not None:
        data = data.replace('"@raw@"', raw, 1)
    data = data.encode("utf-8", "surrogatepass")
    if how == "utf8":
        at = rng.randrange(len(data) + 1)
        data = data[:at] + rng.choice([b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80"]) + data[at:]
    elif how == "mark":
        data = rng.choice([b"\xef\xbb\xbf", b"\xff\xfe", b"\0", b"\n" * 100_000]) + data
    elif how == "behind":
        data += rng.choice([b"x", b"{}", b"\0", b",", b"\n" * 100_000, data])
    return data, label
