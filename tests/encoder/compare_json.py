#!/usr/bin/env python3
"""Compares the tokenizers that hstu reads from tokenizer.json with the package `tokenizers`.

Trains byte-level BPE (as RoBERTa and GPT-2 have it) and Unigram (as XLM-R has it) tokenizers on generated text in many
scripts, and compares the ids and types of random texts and pairs, whole and truncated.
Usage: tests/encoder/compare_json.py HSTU [--texts N] [--seed N]; exits with 77 where the package is missing.
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import unicodedata

import charsmap

# First and last letters of scripts: Latin, Greek, Cyrillic, Armenian, Hebrew, Arabic, Devanagari, Bengali, Thai,
# Georgian, Hangul letters and syllables, kana, Chinese, fullwidth forms, mathematical letters.
SCRIPTS = [(0x61, 0x7A), (0x41, 0x5A), (0xC0, 0x17F), (0x3B1, 0x3C9), (0x430, 0x44F), (0x561, 0x586), (0x5D0, 0x5EA),
           (0x621, 0x64A), (0x904, 0x94D), (0x985, 0x9CD), (0xE01, 0xE4E), (0x10D0, 0x10F0), (0x1100, 0x11FF),
           (0xAC00, 0xAC80), (0x3041, 0x30FF), (0x4E00, 0x4E60), (0xFF01, 0xFF9D), (0x1D400, 0x1D440), (0x30, 0x39)]
ODD = ("\t\n\r\v\f\x01\x1b\x7f\x85\u00a0\u00ad\u034f\u0600\u06dd\u070f\u1680\u180e\u200b\u200c\u200d\u200e\u2028\u202f\u2060\u3000"
       "\ufe0f\ufeff\ufffd\u2581\u0120\u00a9\u00ae\u2122\u2139\ufb01\ufdfa\u0958\u0f77\u1e9b\u212b\u2126\u0130\u0345"
       "\u0e33\u0eb3\u11a8\u1161\U0001f1e9\U0001f1ea\U0001f468\U0001f469\U0001f467\U0001f3fd\U000e0067\u0d4e\u094d\u0915")
MARKS = "\u0300\u0301\u0302\u0308\u0327\u0328\u0323\u05b0\u064b\u0651\u093c\u0941\u094d\u0e34\u3099\u309a\u20dd\u0903"
EMOJI = ["\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f44d\U0001f3fd", "\u2764\ufe0f", "\u00a9\u200d\u2122\u0301",
         "\U0001f1e9\U0001f1ea\U0001f1eb", "1\ufe0f\u20e3", "\U0001f3f4\U000e0067\U000e0062\U000e007f"]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
ADDED = ["<extra>", "New York", " two  words ", "\ufb01x"]


def word(r):
    first, last = r.choice(SCRIPTS)
    return "".join(chr(first + int((last - first + 1) * r.random() ** 2)) for _ in range(r.randrange(1, 7)))


def anything(r):
    c = r.randrange(1, r.choice([0x80, 0x800, 0x3000, 0x10000, 0x20000, 0x110000]))
    return "x" if 0xD800 <= c < 0xE000 else chr(c)


def text_of(r, words):
    parts = []
    for _ in range(r.randrange(0, 25)):
        kind = r.random()
        if kind < 0.55:
            parts.append(r.choice(words))
        elif kind < 0.65:
            parts.append("".join(r.choice([r.choice(words), r.choice(ODD), r.choice(MARKS)]) for _ in range(r.randrange(1, 6))))
        elif kind < 0.7:
            parts.append(r.choice(EMOJI))
        elif kind < 0.74:
            parts.append(r.choice(SPECIAL + ADDED + ["<mask", "new york"]))
        elif kind < 0.8:
            parts.append(r.choice("'") + r.choice(["s", "t", "re", "ve", "m", "ll", "d", "S", "x"]))
        elif kind < 0.84:
            parts.append(unicodedata.normalize("NFD", r.choice(words)))
        elif kind < 0.87:
            parts.append(r.choice(words)[:2] * r.randrange(1, 40))
        else:
            parts.append("".join(anything(r) for _ in range(r.randrange(1, 5))))
        parts.append(r.choice(["", " ", " ", " ", "  ", " " * r.randrange(1, 30), "\n", "\t ", r.choice(ODD), ", ", "."]))
    return "".join(parts)


def nfkc():
    """A charsmap like sentencepiece's nmt_nfkc: NFKC, pairs that compose, spaces, and controls that go."""
    pairs = {}
    for c in map(chr, [*range(1, 0xD800), *range(0xE000, 0x20000)]):
        pairs[c] = unicodedata.normalize("NFKC", c)
        parts = unicodedata.normalize("NFD", c)
        if len(parts) > 1 and unicodedata.normalize("NFC", parts) == c and not 0xAC00 <= ord(c) <= 0xD7A3:
            pairs[parts] = c
    pairs = {c: to for c, to in pairs.items() if c != to}
    pairs.update({c: " " for c in "\t\n\r\u00a0\u200b\u2028\u2029\ufeff\u3000"})
    return charsmap.build({**pairs, **{chr(c): "" for c in [*range(1, 9), 0x0B, 0x0E, 0x0F, *range(0x10, 0x20), 0x7F, 0xAD]}})


def make(kind, corpus):
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

    strips = [AddedToken("<mask>", lstrip=True, normalized=kind % 2 == 1)]
    tokens = SPECIAL[:4] if kind != 1 else [AddedToken(x, normalized=True) for x in SPECIAL[:4]]
    if kind < 2:
        t = Tokenizer(models.BPE())
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=kind == 1)
        trainer = trainers.BpeTrainer(vocab_size=1500, special_tokens=tokens + strips, show_progress=False,
                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    else:
        t = Tokenizer(models.Unigram())
        table, space = normalizers.Precompiled(nfkc()), pre_tokenizers.Metaspace()
        t.normalizer = table if kind == 2 else normalizers.Sequence(
            [table, normalizers.Strip(left=False), normalizers.Replace(Regex(" {2,}"), "\u2581"), normalizers.Replace("Q", "kw")])
        t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), space]) if kind == 2 else space
        trainer = trainers.UnigramTrainer(vocab_size=1500, special_tokens=tokens + strips, unk_token="<unk>", show_progress=False)
    t.train_from_iterator(corpus, trainer)
    t.add_tokens([AddedToken(x, normalized=i % 2 == 0, rstrip=i == 0) for i, x in enumerate(ADDED)])
    ids = [(x, t.token_to_id(x)) for x in ("<s>", "</s>")]
    template = processors.TemplateProcessing(single="<s> $A </s>", pair=f"<s> $A </s> </s> $B{':1' if kind == 3 else ''} </s>",
                                             special_tokens=ids)
    t.post_processor = [processors.RobertaProcessing(ids[1], ids[0]),
                        processors.Sequence([processors.ByteLevel(), template]), template, template][kind]
    return t


def run(hstu, folder, lines, *more):
    with open(os.path.join(folder, "in.jsonl"), "w", encoding="utf-8") as f:
        f.writelines(json.dumps(line) + "\n" for line in lines)
    command = [hstu, "encode", folder, "--input", os.path.join(folder, "in.jsonl"), "--tokens-only", *more]
    done = subprocess.run(command, capture_output=True, encoding="utf-8")
    if done.returncode != 0:
        sys.exit(done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


def compare(hstu, kind, n, seed):
    r = random.Random(seed * 4 + kind)
    words = [word(r) for _ in range(800)]
    t = make(kind, [" ".join(r.choice(words) for _ in range(12)) for _ in range(1500)])
    lines = [{"text": text_of(r, words)} for _ in range(n)]
    for line in lines[::5]:
        line["pair"] = text_of(r, words)
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        for longest in (4000, 24):
            config = {"model_type": "xlm-roberta", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1,
                      "intermediate_size": 8, "vocab_size": t.get_vocab_size(), "type_vocab_size": 1, "pad_token_id": 1,
                      "max_position_embeddings": longest + 2}
            with open(os.path.join(folder, "config.json"), "w") as f:
                json.dump(config, f)
            t.no_truncation()
            t.save(os.path.join(folder, "tokenizer.json"))
            part = lines if longest > 24 else lines[:n // 10]
            got = run(hstu, folder, part, "--truncate")
            t.enable_truncation(longest)
            for line, have in zip(part, got, strict=True):
                want = t.encode(line["text"], line.get("pair"))
                if (have["ids"], have.get("types", want.type_ids)) != (want.ids, want.type_ids):
                    bad += 1
                    if bad < 6:
                        at = next((i for i, (a, b) in enumerate(zip(have["ids"], want.ids)) if a != b), -1)
                        print(f"{kind}: {line!r} at {at}: {have['ids'][at:at + 5]} not {want.ids[at:at + 5]} {want.tokens[at:at + 5]}")
    return bad


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("hstu")
    parser.add_argument("--texts", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=1)
    a = parser.parse_args()
    try:
        import tokenizers  # noqa: F401
    except ImportError as error:
        print(f"skipped: {error}")
        sys.exit(77)
    bad = [compare(a.hstu, kind, a.texts // 4, a.seed) for kind in range(4)]
    print(f"{a.texts // 4 * 4} texts of BPE and Unigram, {sum(bad)} differ {bad}")
    sys.exit(1 if sum(bad) else 0)


main()
