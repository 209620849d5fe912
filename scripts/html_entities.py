#!/usr/bin/env python3
"""Writes mhla/io/text/html_entities.h: the named character references of HTML5, from Python's own table.

    python3 scripts/html_entities.py >mhla/io/text/html_entities.h
"""

import html.entities

LINE = 112


def main() -> None:
    entries = [f"{name}={'+'.join(f'{ord(c):x}' for c in text)} " for name, text in sorted(html.entities.html5.items())]
    lines, line = [], ""
    for entry in entries:
        if len(line) + len(entry) > LINE:
            lines.append(line)
            line = ""
        line += entry
    lines.append(line)
    print("// Named character references of HTML5 and their code points, made by scripts/html_entities.py. Some names end")
    print('// without a semicolon: "amp" is read where "amp;" is not there. Private to this room.')
    print("#pragma once\n\n#include <string_view>\n\nnamespace mhla {\n")
    print("inline constexpr std::string_view kHtmlEntities =")
    print("\n".join(f'    "{text}"' for text in lines) + ";")
    print("\n}  // namespace mhla")


if __name__ == "__main__":
    main()
