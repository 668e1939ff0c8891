#!/bin/sh
# Draws what a command prints as a picture of a terminal, for the README:
#   ./hstu info build/demo | tools/terminal-svg.sh './hstu info build/demo' > docs/img/info.svg
# The text is drawn as text, so it stays sharp and can be searched.  $1 is the command shown.
awk -v prompt="$1" '
function escape(s) {
    gsub(/&/, "\\&amp;", s); gsub(/</, "\\&lt;", s); gsub(/>/, "\\&gt;", s)
    return s
}
BEGIN { line[n++] = prompt }
{ line[n++] = $0 }
END {
    step = 17; top = 46; width = 720; height = top + n * step + 10
    printf "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\">\n", width, height, width, height
    printf "<rect width=\"%d\" height=\"%d\" rx=\"8\" fill=\"#15191f\"/>\n", width, height
    split("#ff5f57 #febc2e #28c840", dot, " ")
    for (i = 1; i <= 3; i++) printf "<circle cx=\"%d\" cy=\"17\" r=\"5.5\" fill=\"%s\"/>\n", i * 18, dot[i]
    print "<g font-family=\"ui-monospace,SFMono-Regular,Menlo,Consolas,DejaVu Sans Mono,monospace\" font-size=\"13\" fill=\"#cdd6e0\" xml:space=\"preserve\">"
    for (i = 0; i < n; i++) {
        if (line[i] == "") continue
        text = escape(line[i])
        # Bars in colour, so that a histogram reads as one.
        gsub(/[█▉▊▋▌▍▎▏]+/, "<tspan fill=\"#4aa8ff\">&</tspan>", text)
        if (i == 0) text = "<tspan fill=\"#28c840\">$</tspan> <tspan fill=\"#ffffff\">" text "</tspan>"
        printf "<text x=\"16\" y=\"%d\">%s</text>\n", top + i * step, text
    }
    print "</g>\n</svg>"
}'
