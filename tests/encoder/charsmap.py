"""Builds the precompiled_charsmap of a sentencepiece normalizer: a double-array trie of UTF-8 keys, and their texts."""
import struct


def build(pairs):
    """pairs: {text: replacement}, no key empty.  Returns the bytes of a precompiled_charsmap."""
    texts, root = bytearray(), {}
    for key, to in pairs.items():
        node = root
        for byte in key.encode():
            node = node.setdefault(byte, {})
        node[0] = len(texts)
        texts += to.encode() + b"\0"
    units, used, todo, low = [0] * 1024, bytearray(1024), [(0, root)], 1
    used[0] = 1
    while todo:
        at, node = todo.pop()
        while used[low:low + 1] == b"\1":
            low += 1
        first, place = min(node), low
        while True:
            base = place ^ first
            while len(units) <= max(base | 255, place):
                units += [0] * 1024
                used += bytes(1024)
            if base and not any(used[base ^ label] for label in node):
                break
            place += 1
        assert at ^ base < 1 << 21
        units[at] |= (at ^ base) << 10 | (0 in node) << 8
        for label, child in node.items():
            used[base ^ label] = 1
            if label == 0:
                units[base] = child | 1 << 31
            else:
                units[base ^ label] = label
                todo.append((base ^ label, child))
    trie = struct.pack(f"<{len(units)}I", *units)
    return struct.pack("<I", len(trie)) + trie + bytes(texts)
