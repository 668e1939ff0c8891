#!/usr/bin/env python3
"""Makes src/encode/word_tables.h: what the tokenizer of BERT does with every character; and, with
--runs, src/encode/char_runs.h: how the other tokenizers classify every character.

The tables are asked of the `tokenizers` package itself (pip install tokenizers), character by
character, so that hstu's word pieces are those of transformers and not those of another version of
Unicode.  Usage: tools/unicode_tables.py > src/encode/word_tables.h
                 tools/unicode_tables.py --runs > src/encode/char_runs.h
"""
import os
import sys

import tokenizers
from tokenizers import normalizers, pre_tokenizers

TYPES = """#ifndef HSTU_ENCODE_WORD_TABLES_H
#define HSTU_ENCODE_WORD_TABLES_H

#include <stdint.h>

/* Characters first to last, mapped to those of a list from `at` on. */
typedef struct char_block {
    uint32_t first, last, at;
} char_block;

typedef struct char_bases {
    uint32_t from, first, second, third; /* third: 0 where there are two */
} char_bases;

/* Every character, as runs (char_runs.h): a other, b control, c white space, d Chinese,
 * e punctuation, f mark. */
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


def blocks(pairs):
    """Blocks of mapped characters and where each begins in the list of results, and that list.

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


def show_text(name, codes):
    """The characters themselves."""
    assert not {ord('"'), ord("\\"), ord("?")} & set(codes)
    print(f"static const uint32_t {name}[] =")
    lines = ["".join(map(chr, codes[i:i + 90])) for i in range(0, len(codes), 90)]
    print("\n".join(f'    U"{line}"' for line in lines) + ";")


def show_mapped(name, pairs):
    found, to = blocks(pairs)
    show(name + "_BLOCKS", "char_block", found)
    show_text(name + "S", [c for c, in to])


RUNS = """#ifndef HSTU_ENCODE_CHAR_RUNS_H
#define HSTU_ENCODE_CHAR_RUNS_H

/* Every character from 0 on, as runs: the letter of a class, and how many characters (1 where no
 * number follows).  Characters after the last run are of class 'a'.
 *
 * WORD_RUNS: a other, b letter, c number, d white space. */
/* clang-format off */"""


def show_runs(name, classes):
    print(f"static const char *const {name}[] = {{")
    line, at = "", 0
    while at < len(classes):
        end = at
        while end < len(classes) and classes[end] == classes[at]:
            end += 1
        run = "abcdefghijklmnopq"[classes[at]] + (str(end - at) if end - at > 1 else "")
        if end < len(classes) or classes[at]:
            if len(line) + len(run) > 92:
                print(f'    "{line}",')
                line = ""
            line += run
        at = end
    print(f'    "{line}",\n}};')


BYTE_LEVEL, WHITE = pre_tokenizers.ByteLevel(add_prefix_space=False), pre_tokenizers.WhitespaceSplit()


def word_class(c):
    letter, number, other = (len(BYTE_LEVEL.pre_tokenize_str(x + chr(c))) == 1 for x in "a1!")
    is_space = len(WHITE.pre_tokenize_str("a" + chr(c) + "b")) == 2
    assert letter + number + other + is_space == 1, hex(c)
    return letter + 2 * number + 3 * is_space


def break_class(f, c):
    """The class of a character for the breaks of grapheme clusters.

    A precompiled charsmap replaces a cluster shorter than six bytes as a whole: where a mark stays after a replaced
    character, that character was not the first of its cluster."""
    c, mark, zwj, virama, ka = chr(c), "\u0302", "\u200d", "\u094d", "\u0915"
    joined = lambda *text: f.normalize_str("".join(text) + mark).endswith("X" + mark)
    if f.normalize_str(c + "\u0301" + mark) == c + "X":
        return 1
    if f.normalize_str("a" + c) == "X":
        if c == zwj:
            return 6
        if joined(ka, c, ka):
            return 5
        extends, conjoins = joined("\u00a9", c, zwj, "\u00a9"), joined(ka, c, virama, ka)
        assert extends or not conjoins, hex(ord(c))
        return 3 if conjoins else 4 if extends else 7
    if joined(c, "a"):
        return 2
    if joined(c, virama, ka):
        return 8
    if joined(c, zwj, "\u00a9"):
        return 9
    if ord(c) in HANGUL:
        return 0
    lead, vowel, trail = joined(c, "\u1100"), joined(c, "\u1161"), joined(c, "\u11a8")
    return 10 if lead else 11 if vowel else 12 if trail else 0


def runs_main():
    sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "tests", "encoder"))
    import charsmap

    f = normalizers.Precompiled(charsmap.build({c: "X" for c in "a\u0301\u00a9\u0915\u1100\u1161\u11a8"}))
    codes = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    words, breaks = [0] * 0x110000, [0] * 0x110000
    for c in codes:
        words[c], breaks[c] = word_class(c), break_class(f, c)
    print("/* Made by tools/unicode_tables.py --runs from tokenizers " + tokenizers.__version__ + ". */")
    print(RUNS)
    show_runs("WORD_RUNS", words)
    print("/* b control, c prepend, d extend, e extend that ends a conjunct, f linker, g joiner,\n"
          " * h spacing mark, i consonant of conjuncts, j pictograph, k l m: Hangul letters that lead,\n"
          " * are a vowel, trail. */")
    show_runs("BREAK_RUNS", breaks)
    print("\n#endif")


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
    classes = [0] * 0x110000
    for k, codes in enumerate((control, space, chinese, punctuation, mark), 1):
        for c in codes:
            assert classes[c] == 0, hex(c)
            classes[c] = k
    show_runs("BERT_RUNS", classes)
    show_mapped("BASE", base)
    show("LONG_BASES", "char_bases", [(b + (0,))[:4] for b in bases])
    show_mapped("LOWER", lower)
    print("\n#endif")


runs_main() if "--runs" in sys.argv else main()
