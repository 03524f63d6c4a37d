# What doxygen reads of a public header, line by line, so that its warnings name the lines of the header: the words that
# conventions.md defines become links, what is said of an awaitable a list, errors and sources lines of their own. What
# is the same of all handles is said of each, and what makes an awaitable work, for the compiler alone, is left out.

function undocumented() { return previous !~ /^ *\/\/\// && $0 !~ /\/\/\/</ }

function say(text) { if (undocumented()) $0 = "    /** " text " */ " $0 }

function link(word, anchor) {
    gsub(word, "@ref " anchor " \"&\"")
    gsub("[*]@ref " anchor, "@ref " anchor)
    gsub("\"[*]", "\"")
}

{ line = $0 }

/^class .*_(operation|awaiter)[ >].*[{]$/ { machinery = 1; awaiter = /_awaiter/ }
machinery && /^};$/ { machinery = 0; if (awaiter) $0 = ""; awaiter = 0 }
machinery && (awaiter || !/^class |^  public:$| using result_type /) { $0 = "" }

# Doxygen 1.9.8 takes what follows in another namespace of the file for private, too.
/^  (private|protected):$/ { hidden = 1 }
/^};$|^  public:$/ { hidden = 0 }
hidden { $0 = "" }

/ using result_type / { say("What `co_await` gives.") }

/ operator bool\(\) const noexcept/ { say("False: it is empty.") }
/ friend .*bool operator==\(.*default;$/ {
    say("Of handles: whether both are of one object; of values: whether all members are equal.")
}
/ bool operator==\(const [a-z_]+&\) const = default;$/ { say("Whether all members are equal.") }
/^    [a-z_]+(& operator=)?\([a-z_]+&& ?[a-z]*\)/ {
    say("What was moved from may be assigned to and destroyed, no more.")
}
/ native_handle\(\) const noexcept;/ { say("The object of rdma-core, still this handle's; null if that is empty.") }
/^    (verbena::)?context context\(\) const noexcept;/ { say("Empty if this is.") }
/^    protection_domain domain\(\) const noexcept;/ { say("Empty if this is.") }

/^ *\/\/\/ / {
    if (match($0, /^ *\/\/\/ [A-Z][a-z ]*[a-z]  +/)) {
        word = substr($0, 1, RLENGTH)
        rest = substr($0, RLENGTH + 1)
        sub(/ +$/, "", word)
        sub(/\/\/\/ /, "/// - **", word)
        $0 = word ":** " rest
    } else if (match($0, /^ *\/\/\/ - [A-Z][a-z ]*: /)) {
        $0 = substr($0, 1, RLENGTH - 2) ":** " substr($0, RLENGTH + 1)
        sub(/\/\/\/ - /, "/// - **")
    }
}
/^ *\/\/\/ / && $0 !~ /\*\*/ {
    start = previous ~ /^ *\/\/\// ? "<br>" : ""
    sub(/\/\/\/ Errors: /, "/// " start "**Errors:** ") || sub(/ Errors: /, " <br>**Errors:** ")
    sub(/\/\/\/ Source: /, "/// " start "**Source:** ") || sub(/ Source: /, " <br>**Source:** ")
    sub(/\/\/\/ Sources: /, "/// " start "**Sources:** ") || sub(/ Sources: /, " <br>**Sources:** ")
    sub(/ Source:$/, " <br>**Source:**")
}
/^ *\/\/\/|\/\/\/< / && !/^ *\/\/\/     / {
    link("[Rr]eactor-bound", "reactor_bound")
    link("[Tt]hread-safe", "thread_safe")
    link("class 1", "class_1")
    link("class 2", "class_2")
    link("class 3", "class_3")
}

# Else a comment in front of the next line would go on with it.
/\/\/\/< / && sub(/\/\/\/< /, "/**< ") { $0 = $0 " */" }

{ print; previous = line }
