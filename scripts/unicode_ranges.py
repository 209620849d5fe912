#!/usr/bin/env python3
"""Writes mhla/io/text/unicode_ranges.h: the letters (L) and numbers (N) of Python's Unicode tables as ranges.

    python3 scripts/unicode_ranges.py >mhla/io/text/unicode_ranges.h && make format
"""
import unicodedata


def ranges(kind):
    found, last = [], None
    for code in range(0x110000):
        if unicodedata.category(chr(code))[0] != kind:
            continue
        if found and last == code - 1:
            found[-1][1] = code
        else:
            found.append([code, code])
        last = code
    return found


print(f"// Letters and numbers of Unicode {unicodedata.unidata_version}, first and last of each range. Written by")
print("// scripts/unicode_ranges.py; private to this room.")
print("#pragma once\n\n#include <cstdint>\n\nnamespace mhla {\n")
print("struct UnicodeRange {\n  std::uint32_t first, last;\n};\n")
for name, kind in (("kLetterRanges", "L"), ("kNumberRanges", "N")):
    print(f"inline constexpr UnicodeRange {name}[] = {{")
    print(", ".join(f"{{0x{first:x}, 0x{last:x}}}" for first, last in ranges(kind)))
    print("};\n")
print("}  // namespace mhla")
