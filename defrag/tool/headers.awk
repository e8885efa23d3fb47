# headers.awk: a help text of public headers, of which `zr manual NAME 3` makes a page: one line per function, with the first
# sentence of its comment. Variables: about (one line), package (name for pkg-config), root (folder of the headers).
BEGIN {
    print about "\n\nExamples"
    for (i = 1; i < ARGC; i++)
        print "  #include \"" ARGV[i] "\""
    print "  cc program.c $(pkg-config --cflags --libs " package ")"
}

FNR == 1 {
    is_first = 1
    heading = FILENAME
}
/^\/\* ---- / {
    heading = $0
    gsub(/^\/\* -+ | -+ \*\/$/, "", heading)
    next
}
/^\/\*/ {
    is_comment = 1
    said = ""
}
is_comment {
    line = $0
    gsub(/^\/\* ?|^ \* ?|^ \*|\*\/$/, "", line)
    sub(/ +$/, "", line)
    said = said (line == "" ? "\n\n" : (said ~ /(^|\n)$/ ? "" : " ") line)
    if (/\*\/$/) {
        is_comment = 0
        if (is_first)
            words = words "\n" said "\n"
        is_first = 0
    }
    next
}
/^ZR_API/ && match($0, /zr_[a-z0-9_]*\(/) {
    if (heading != "")
        print "\n" heading
    heading = ""
    sentence = said
    if (match($0, /\/\* .* \*\//))
        sentence = substr($0, RSTART + 3, RLENGTH - 6)
    sub(/\n.*/, "", sentence)
    if (match(sentence, /[.] /))
        sentence = substr(sentence, 1, RSTART)
    match($0, /zr_[a-z0-9_]*\(/)
    print "  " substr($0, RSTART, RLENGTH) ")  " (sentence == "" ? "see " FILENAME : sentence)
}
/^$/ {
    said = ""
}
END {
    printf "%s", words
}
