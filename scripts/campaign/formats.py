"""Changes that know a file format: heads of safetensors and token shards, images, checkpoints with true checksums.

A reader that trusts the head of a file is not found by turning bits at random: lengths, offsets, shapes and types change
here one at a time, and where a checksum would refuse the file first, it is made to fit.
"""

import json
import pathlib
import struct
import zlib

import edits

SIZES = {"BOOL": 1, "U8": 1, "I8": 1, "F16": 2, "BF16": 2, "I16": 2, "F32": 4, "I32": 4, "F64": 8, "I64": 8}
LENGTHS = [0, 1, 7, 8, 2**31, 2**32, 2**40, 2**62, 2**63, 2**64 - 1]


def _crc_table():
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_CRC = _crc_table()


def crc32c(data):
    value = 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ _CRC[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


def read_safetensors(data):
    length = struct.unpack_from("<Q", data)[0]
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def pack_safetensors(header, body, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text) if length is None else length) + text + body


def edit_values(header, body, rng):
    """Numbers of one tensor become NaN, infinite, huge, zero or denormal: a sound file with weights nobody can use."""
    names = [name for name, entry in header.items() if name != "__metadata__" and entry["dtype"] == "F32"]
    if not names:
        return body, "no F32 tensor"
    name = rng.choice(names)
    begin, end = header[name]["data_offsets"]
    value = rng.choice([float("nan"), float("inf"), -float("inf"), 3e38, -3e38, 1e30, 0.0, 1e-42])
    count = (end - begin) // 4
    some = count if rng.random() < 0.5 else min(1, count)
    body = bytearray(body)
    body[begin : begin + 4 * some] = struct.pack("<f", value) * some
    return bytes(body), f"{some} values of {name} = {value}"


def edit_safetensors(data, rng):
    if rng.random() < 0.15:
        return edits.edit_bytes(data, rng)
    header, body = read_safetensors(data)
    names = [name for name in header if name != "__metadata__"]
    name = rng.choice(names) if names else None
    how = rng.choice(["values"] * 3 + ["header"] * 2 + ["length", "dtype", "shape", "offsets", "offsets", "missing", "name",
                      "extra", "metadata", "body", "turn", "narrow"])  # fmt: skip
    entry = header.get(name, {})
    label = f"safetensors: {how} of {name}"
    if how == "values" or name is None:
        body, label = edit_values(header, body, rng)
    elif how == "header":
        text, label = edits.edit_json(json.dumps(header), rng)
        return pack_safetensors(text, body), "header: " + label
    elif how == "length":
        size = struct.unpack_from("<Q", data)[0]
        return pack_safetensors(header, body, rng.choice([*LENGTHS, size - 1, size + 1, size + 8, len(data)])), label
    elif how == "dtype":
        entry["dtype"] = rng.choice([*SIZES, "F8_E4M3", "C64", "f32", "", 3])
    elif how == "shape":
        shape = entry["shape"]
        entry["shape"] = rng.choice(
            [[], [0], [-1], shape[::-1], [*shape, 1], [1, *shape], [2**31, 2**33], [2**62, 4], [1.5], ["1"], shape + shape]
        )
    elif how == "offsets":
        begin, end = entry["data_offsets"]
        entry["data_offsets"] = rng.choice(
            [[end, begin], [begin, end + 4], [begin + 1, end + 1], [0, end - begin], [begin, 2**63 - 1], [-4, end], [begin],
             [begin, end, end], [2**62, 2**62 + end - begin], [len(body), len(body) + end - begin], [begin, begin]]
        )  # fmt: skip
    elif how == "missing":
        del header[name]
    elif how == "name":
        header[rng.choice(["", name + "x", "x" * 100_000, "\u00e9", "a\nb", name.upper(), "../" + name])] = header.pop(name)
    elif how == "extra":
        header["extra"] = {"dtype": "F32", "shape": [4], "data_offsets": [len(body), len(body) + 16]}
        body += bytes(16)
    elif how == "metadata":
        header["__metadata__"] = rng.choice([{}, None, {"format": 1}, {"format": "pt"}, {"a": "x" * 10**6}, [], "x"])
    elif how == "body":
        body = rng.choice([b"", body[:-1], body + b"\0", body[: len(body) // 2], body * 2])
    elif how == "turn":  # the bytes are there, rows and columns change places
        entry["shape"] = entry["shape"][::-1]
    elif how == "narrow" and entry["dtype"] == "F32":  # as many numbers, of two bytes
        entry["dtype"] = rng.choice(["F16", "BF16"])
        begin, end = entry["data_offsets"]
        packed, at, pieces = {}, 0, []
        for key, other in sorted(((k, v) for k, v in header.items() if k != "__metadata__"), key=lambda x: x[1]["data_offsets"]):
            piece = body[other["data_offsets"][0] : other["data_offsets"][1]]
            piece = piece[: len(piece) // 2] if key == name else piece
            packed[key] = {**other, "data_offsets": [at, at + len(piece)]}
            at += len(piece)
            pieces.append(piece)
        header, body = packed, b"".join(pieces)
    return pack_safetensors(header, body), label


def edit_shard(data, rng):
    """A field of the head, an offset or a token; the checksums fit in half of the cases."""
    if len(data) < 72 or rng.random() < 0.3:
        return edits.edit_bytes(data, rng)
    data = bytearray(data)
    name, at, form = rng.choice([("magic", 0, "<Q"), ("version", 8, "<I"), ("width", 12, "<I"), ("fingerprint", 16, "<Q"),
                                 ("vocabulary", 24, "<Q"), ("documents", 32, "<Q"), ("tokens", 40, "<Q"), ("zero", 48, "<Q"),
                                 ("offset", 64, "<Q"), ("offset", 72, "<Q"), ("offset", 80, "<Q"),
                                 ("token", len(data) - 2, "<H"), ("end", len(data) - 64, "<Q")])  # fmt: skip
    size = struct.calcsize(form)
    old = struct.unpack_from(form, data, at)[0]
    new = rng.choice([*LENGTHS, old + 1, max(0, old - 1), old * 2]) % 2 ** (8 * size)
    struct.pack_into(form, data, at, new)
    label = f"shard: {name} at {at} = {new}"
    if rng.random() < 0.5:
        struct.pack_into("<I", data, 56, crc32c(data[64:]))
        struct.pack_into("<I", data, 60, crc32c(data[:60]))
        label += ", checksums fit"
    return bytes(data), label


def edit_image(data, rng):
    """Bytes, with a liking for the sizes that stand in a head."""
    if len(data) < 70 or rng.random() < 0.5:
        return edits.edit_bytes(data, rng)
    data = bytearray(data)
    if data[:4] == b"\x89PNG" and rng.random() < 0.7:
        at, order = 16 + 4 * rng.randrange(2), ">I"
    else:
        at, order = rng.randrange(min(len(data) - 4, 64)), rng.choice([">I", "<I", ">H", "<H"])
    value = rng.choice([0, 1, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 10**6, 40_000]) % 2 ** (8 * struct.calcsize(order))
    struct.pack_into(order, data, at, value)
    label = f"image: {order} at {at} = {value}"
    if data[:4] == b"\x89PNG" and rng.random() < 0.7:  # else a reader stops at the checksum of the head
        struct.pack_into(">I", data, 29, zlib.crc32(data[12:29]))
        label += ", CRC fits"
    return bytes(data), label


def edit_file(path, rng):
    """Changes a file by its kind, which its name gives. Returns what was done."""
    path = pathlib.Path(path)
    data = path.read_bytes()
    if path.suffix == ".json":
        new, label = edits.edit_json(data, rng) if rng.random() < 0.8 else edits.edit_bytes(data, rng)
    elif path.suffix == ".safetensors":
        new, label = edit_safetensors(data, rng)
    elif path.suffix == ".tokens":
        new, label = edit_shard(data, rng)
    elif path.suffix in (".png", ".jpg", ".webp", ".bmp", ".gif", ".tif", ".tiff"):
        new, label = edit_image(data, rng)
    else:
        new, label = edits.edit_bytes(data, rng)
    path.write_bytes(new)
    return f"{path.name}: {label}"


def seal_checkpoint(folder):
    """Lengths and checksums of checkpoint.json as the files now are."""
    manifest = folder / "checkpoint.json"
    try:
        tree = json.loads(manifest.read_bytes())
        for name, entry in tree["files"].items():
            data = (folder / name).read_bytes()
            entry["bytes"], entry["crc32c"] = len(data), crc32c(data)
        manifest.write_text(json.dumps(tree))
    except (ValueError, KeyError, OSError, TypeError, AttributeError, RecursionError):
        pass  # the manifest is what was changed
