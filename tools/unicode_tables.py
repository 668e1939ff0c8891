#!/usr/bin/env python3
"""Makes src/encode/word_tables.h: what the tokenizer of BERT does with every character.

The tables are asked of the `tokenizers` package itself (pip install tokenizers), character by
character, so that hstu's word pieces are those of transformers and not those of another version of
Unicode.  Usage: tools/unicode_tables.py > src/encode/word_tables.h
"""
import tokenizers
from tokenizers import normalizers, pre_tokenizers

TYPES = """#ifndef HSTU_ENCODE_WORD_TABLES_H
#define HSTU_ENCODE_WORD_TABLES_H

#include <stdint.h>

typedef struct char_range {
    uint32_t first, last;
} char_range;

/* Characters first to last, mapped to BASES[at], BASES[at + 1], ... */
typedef struct char_block {
    uint32_t first, last, at;
} char_block;

typedef struct char_bases {
    uint32_t from, first, second, third; /* third: 0 where there are two */
} char_bases;

/* Characters first, first + step, ... last, each mapped by the same distance. */
typedef struct char_run {
    uint32_t first, last, step;
    int32_t distance;
} char_run;

/* clang-format off */"""

HANGUL = range(0xAC00, 0xD7A4)  # decomposed by arithmetic


def normalizer(**on):
    names = ("clean_text", "handle_chinese_chars", "strip_accents", "lowercase")
    return normalizers.BertNormalizer(**{name: on.get(name, False) for name in names})


CLEAN, CHINESE = normalizer(clean_text=True), normalizer(handle_chinese_chars=True)
STRIP, LOWER = normalizer(strip_accents=True), normalizer(lowercase=True)
SPLIT = pre_tokenizers.BertPreTokenizer()


def between(f, c, a="a", b="b"):
    """What f makes of a character between two letters."""
    text = f.normalize_str(a + chr(c) + b)
    assert text[0].lower() == "a" and text[-1].lower() == "b", hex(c)
    return text[1:-1]


def ranges(codes):
    out = []
    for c in sorted(codes):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def runs(pairs):
    """Mappings by a constant distance: first, last, step, distance."""
    out = []
    for c, to in sorted(pairs):
        d = to - c
        if out and out[-1][3] == d and c - out[-1][1] in (1, 2):
            first, last, step, _ = out[-1]
            if first == last or step == c - last:
                out[-1] = [first, c, c - last, d]
                continue
        out.append([c, c, 1, d])
    return out


def blocks(pairs):
    """Blocks of mapped characters and where each begins in the list of bases, and that list.

    A gap of one or two characters, which stay as they are, ends no block: it costs less than one."""
    out, bases, end = [], [], -3
    for c, to in sorted(pairs):
        if c - end > 3:
            out.append([c, c, len(bases)])
            end = c - 1
        bases += [(x,) for x in range(end + 1, c)] + [(to,)]
        out[-1][1] = end = c
    return out, bases


def show(name, kind, rows):
    print(f"static const {kind} {name}[] = {{")
    line = "   "
    for row in rows:
        text = ", ".join(hex(x) if x >= 0 else str(x) for x in row)
        text = f" {text}," if len(row) == 1 else " {" + text + "},"
        if len(line) + len(text) > 98:
            print(line)
            line = "   "
        line += text
    print(line + "\n};")


def main():
    control, space, chinese, punctuation, mark, base, bases, lower = [], [], [], [], [], [], [], []
    for c in range(0x110000):
        if 0xD800 <= c < 0xE000:
            continue
        cleaned = between(CLEAN, c)
        if cleaned == "":
            control.append(c)
        elif cleaned != chr(c):
            assert cleaned == " ", hex(c)
            space.append(c)
        if between(CHINESE, c) != chr(c):
            chinese.append(c)
        words = [w for w, _ in SPLIT.pre_tokenize_str("a" + chr(c) + "b")]
        if words == ["a", chr(c), "b"]:
            punctuation.append(c)
        stripped = [ord(x) for x in between(STRIP, c)]
        if not stripped:
            mark.append(c)
        elif c not in HANGUL and stripped != [c]:
            (base if len(stripped) == 1 else bases).append((c, *stripped))
        low = [ord(x) for x in between(LOWER, c, "A", "B")]
        if low != [c]:
            assert len(low) == 1 or c == 0x130, hex(c)
            if len(low) == 1:
                lower.append((c, low[0]))
    print("/* Made by tools/unicode_tables.py from tokenizers " + tokenizers.__version__ + ". */")
    print(TYPES)
    show("CONTROLS", "char_range", ranges(control))
    show("SPACES", "char_range", ranges(space))
    show("CHINESE", "char_range", ranges(chinese))
    show("PUNCTUATION", "char_range", ranges(punctuation))
    show("MARKS", "char_range", ranges(mark))
    base_blocks, base_list = blocks(base)
    show("BASE_BLOCKS", "char_block", base_blocks)
    show("BASES", "uint32_t", base_list)
    show("LONG_BASES", "char_bases", [(b + (0,))[:4] for b in bases])
    show("LOWER", "char_run", runs(lower))
    print("\n#endif")


main()
