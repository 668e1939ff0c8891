#!/usr/bin/env python3
"""Compares hstu encode with Hugging Face: word pieces with `tokenizers`, models with `transformers`.

Usage: tests/encoder/compare.py HSTU [--texts N] [--models]
Needs the Python packages tokenizers and, with --models, torch, transformers and safetensors; exits
with 77 where they are missing.
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile

PIECES = "the of and a to in is ab cd ##ab ##cd ##e ##s un ##able , . ! ? - ( ) # $ é cafe café ß Σ σ ς".split()


def missing(error):
    print(f"skipped: {error}")
    sys.exit(77)


def vocabulary():
    chars = [chr(c) for c in range(33, 127)] + [chr(c) for c in range(0xA1, 0x250)]
    chars += [chr(c) for c in range(0x370, 0x590)] + [chr(c) for c in range(0x4E00, 0x4E40)]
    chars += [chr(c) for c in range(0x1100, 0x1200)] + [chr(c) for c in range(0xAC00, 0xAC40)]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + PIECES + chars
    words += ["##" + c for c in chars]
    return list(dict.fromkeys(words))


def random_char(r):
    kind = r.random()
    if kind < 0.5:
        return chr(r.randrange(32, 127))
    if kind < 0.6:
        return chr(r.randrange(1, 0x250))
    if kind < 0.65:
        return chr(r.randrange(0x300, 0x370))
    if kind < 0.75:
        return chr(r.choice([0x4E00, 0xAC00, 0x3040, 0x600, 0x900, 0x2000, 0xFF00]) + r.randrange(0x100))
    if kind < 0.8:
        return r.choice("\t\n\r\u00a0\u2028\u3000\u200b\ufeff\ufffd\u0130\u03a3\u0345")
    c = r.randrange(1, 0x110000)
    return "x" if 0xD800 <= c < 0xE000 else chr(c)


def random_text(r):
    parts = []
    for _ in range(r.randrange(0, 40)):
        kind = r.random()
        if kind < 0.4:
            parts.append(r.choice(PIECES).replace("##", ""))
        elif kind < 0.45:
            parts.append(r.choice(["[MASK]", "[SEP]", "[CLS]", "[UNK]", "[PAD]", "[mask]", "[MASK"]))
        elif kind < 0.47:
            parts.append("ab" * r.randrange(40, 60))
        else:
            parts.append("".join(random_char(r) for _ in range(r.randrange(1, 9))))
        parts.append(r.choice(["", " ", " ", "  "]))
    return "".join(parts)


def write_folder(folder, words, options):
    config = {"model_type": "bert", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1,
              "intermediate_size": 8, "vocab_size": len(words), "max_position_embeddings": 4096}
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
        json.dump(options, f)
    with open(os.path.join(folder, "vocab.txt"), "w", encoding="utf-8") as f:
        f.write("\n".join(words) + "\n")


def reference(words, options):
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    t = Tokenizer(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=options["tokenize_chinese_chars"],
        strip_accents=options["strip_accents"], lowercase=options["do_lower_case"])
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    t.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    return t


def run(hstu, folder, lines, *more):
    path = os.path.join(folder, "in.jsonl")
    with open(path, "w", encoding="utf-8") as f:
        f.writelines(json.dumps(line) + "\n" for line in lines)
    command = [hstu, "encode", folder, "--input", path, "--device", "cpu", *more]
    done = subprocess.run(command, capture_output=True, encoding="utf-8")
    if done.returncode != 0:
        print(done.stderr)
        sys.exit(1)
    return done.stdout


def compare_texts(hstu, n):
    words, r, bad = vocabulary(), random.Random(5), 0
    for options in range(8):
        o = {"do_lower_case": bool(options & 1), "tokenize_chinese_chars": bool(options & 2),
             "strip_accents": None if options & 4 else bool(options & 1) != bool(options & 2)}
        texts = [random_text(r) for _ in range(n // 8)]
        t = reference(words, o)
        with tempfile.TemporaryDirectory() as folder:
            write_folder(folder, words, o)
            if options % 3 == 0:  # as transformers 5 saves it
                os.remove(os.path.join(folder, "vocab.txt"))
                t.save(os.path.join(folder, "tokenizer.json"))
            lines = run(hstu, folder, [{"text": t} for t in texts], "--tokens-only", "--truncate").splitlines()
        for text, line in zip(texts, lines, strict=True):
            want = [2] + t.encode(text, add_special_tokens=False).ids[:4094] + [3]
            got = json.loads(line)["ids"]
            if got != want:
                bad += 1
                if bad < 6:
                    at = next((i for i in range(min(len(got), len(want))) if got[i] != want[i]), -1)
                    print(f"{o} {text!r}: at {at}: {got[at:at + 5]} not {want[at:at + 5]}")
    print(f"{n // 8 * 8} texts, {bad} differ")
    return bad


def compare_models(hstu):
    import torch
    from safetensors.torch import load_file
    from transformers import BertConfig, BertModel, DistilBertConfig, DistilBertModel, RobertaConfig, RobertaModel

    size = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40, vocab_size=60,
                max_position_embeddings=40)
    models = [BertModel(BertConfig(**size, hidden_act="relu", layer_norm_eps=1e-5, type_vocab_size=3)),
              BertModel(BertConfig(**size, hidden_act="gelu_new"), add_pooling_layer=False),
              RobertaModel(RobertaConfig(**size, type_vocab_size=1, pad_token_id=1)),
              DistilBertModel(DistilBertConfig(dim=24, n_layers=2, n_heads=3, hidden_dim=40, vocab_size=60,
                                               max_position_embeddings=40))]
    r, worst = random.Random(7), 0.0
    for model in models:
        for p in model.parameters():
            torch.nn.init.normal_(p, std=0.3)
        model.eval().double()
        sequences = [[r.randrange(2, 60) for _ in range(r.randrange(1, 38))] for _ in range(9)]
        with tempfile.TemporaryDirectory() as folder:
            model.float().save_pretrained(folder)
            model.double()
            out = os.path.join(folder, "out.safetensors")
            run(hstu, folder, [{"ids": s} for s in sequences], "--out", out, "--batch-tokens", "50")
            got = load_file(out)
        for b, s in enumerate(sequences):
            with torch.no_grad():
                want = model(torch.tensor([s]))
            hidden = got["hidden"][got["offsets"][b]:got["offsets"][b + 1]].double()
            pairs = [(hidden, want.last_hidden_state[0])]
            if getattr(want, "pooler_output", None) is not None:
                pairs.append((got["pooled"][b].double(), want.pooler_output[0]))
            for x, y in pairs:
                worst = max(worst, ((x - y).pow(2).mean().sqrt() / y.pow(2).mean().sqrt()).item())
    print(f"{len(models)} models, largest relative error {worst:.2e}")
    return worst > 3e-6


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("hstu")
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--models", action="store_true")
    a = parser.parse_args()
    try:
        import tokenizers  # noqa: F401

        if a.models:
            import torch  # noqa: F401
            import transformers  # noqa: F401
    except ImportError as error:
        missing(error)
    bad = compare_texts(a.hstu, a.texts)
    if a.models:
        bad += compare_models(a.hstu)
    sys.exit(1 if bad else 0)


main()
