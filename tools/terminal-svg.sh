#!/bin/sh
# Draws what a command prints as a picture of a terminal, for the README:
#   ./hstu info build/demo | tools/terminal-svg.sh './hstu info build/demo' > docs/img/info.svg
# The text is drawn as text, so it stays sharp and can be searched; every word has its place and its width, and bars
# are rectangles, so that columns hold whatever font a browser takes.  $1 is the command shown.
# Bars become the bytes 1 to 8, the eighths they fill, for an awk that knows no UTF-8.
sed 's/▏/\x01/g; s/▎/\x02/g; s/▍/\x03/g; s/▌/\x04/g; s/▋/\x05/g; s/▊/\x06/g; s/▉/\x07/g; s/█/\x08/g' | LC_ALL=C awk -v prompt="$1" '
function escape(s) {
    gsub(/&/, "\\&amp;", s); gsub(/</, "\\&lt;", s); gsub(/>/, "\\&gt;", s)
    return s
}
# Bytes that begin a character.
function cells(s) {
    gsub(/[\200-\277]/, "", s)
    return length(s)
}
function word(at, y, s, colour) {
    printf "<text x=\"%.1f\" y=\"%d\"%s", left + at * cell, y, colour != "" ? " fill=\"" colour "\"" : ""
    if (cells(s) > 1) printf " textLength=\"%.1f\" lengthAdjust=\"spacingAndGlyphs\"", cells(s) * cell
    printf ">%s</text>\n", escape(s)
}
function bar(at, y, s,    i, eighths) {
    for (i = 1; i <= length(s); i++) eighths += index("\001\002\003\004\005\006\007\010", substr(s, i, 1))
    printf "<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"12\" fill=\"#4aa8ff\"/>\n", left + at * cell, y - 10, eighths * cell / 8
}
function draw(y, s,    at, n) {
    while (s != "") {
        if (match(s, /^ +/)) at += RLENGTH
        else if (match(s, /^[\001-\010]+/)) { bar(at, y, substr(s, 1, RLENGTH)); at += RLENGTH }
        else {
            # A word, or words with single spaces between them.
            match(s, /^[^ \001-\010]+( [^ \001-\010]+)*/)
            word(at, y, substr(s, 1, RLENGTH), "")
            at += cells(substr(s, 1, RLENGTH))
        }
        s = substr(s, RLENGTH + 1)
    }
}
{ line[++n] = $0 }
END {
    step = 17; top = 46; left = 16; cell = 7.8; width = 720; height = top + (n + 1) * step + 10
    printf "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\">\n", width, height, width, height
    printf "<rect width=\"%d\" height=\"%d\" rx=\"8\" fill=\"#15191f\"/>\n", width, height
    split("#ff5f57 #febc2e #28c840", dot, " ")
    for (i = 1; i <= 3; i++) printf "<circle cx=\"%d\" cy=\"17\" r=\"5.5\" fill=\"%s\"/>\n", i * 18, dot[i]
    print "<g font-family=\"ui-monospace,SFMono-Regular,Menlo,Consolas,DejaVu Sans Mono,monospace\" font-size=\"13\" fill=\"#cdd6e0\">"
    word(0, top, "$", "#28c840")
    word(2, top, prompt, "#ffffff")
    for (i = 1; i <= n; i++) draw(top + i * step, line[i])
    print "</g>\n</svg>"
}'
