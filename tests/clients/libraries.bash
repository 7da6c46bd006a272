# Installs client libraries of several languages, and compiles the programs that use them. The script that sources this
# sets $repository, $programs (where each language's program is), $installed (where it is to be put, with its libraries) and $work,
# and defines, for each language, install_LANGUAGE and build_LANGUAGE, which run in $installed/LANGUAGE.

needs_python() { need python3-venv python3 -m venv --without-pip "$work/try"; }
needs_go() { need golang-go go version; }
needs_java() { need default-jdk-headless javac -version && need maven mvn --version; }
needs_javascript() { need nodejs node --version && need npm npm --version; }
needs_ruby() { need ruby ruby --version; }

# Returns whether the command succeeds, if necessary after the installation of a Debian package.
need() {
    local package="$1"
    shift
    "$@" >/dev/null 2>&1 && return
    "$repository/scripts/apt-install" "$package" && "$@" >/dev/null
}

# Runs a function in the directory of its language.
within() (
    cd "$installed/$1"
    "${@:2}"
)

# Installs and compiles everything of the languages named; sets $left_out (not installed) and $broken (not compiled).
left_out=()
broken=()
prepare() {
    local language log="$work/prepare.log"
    for language in "$@"; do
        mkdir -p "$installed/$language"
        cp "$programs/$language"/* "$installed/$language/"
        if ! "needs_$language" >"$log" 2>&1 || ! within "$language" "install_$language" >"$log" 2>&1; then
            left_out+=("$language")
            echo "left out: $language, it cannot be installed here:"
        elif ! within "$language" "build_$language" >"$log" 2>&1; then
            broken+=("$language")
            echo "wrong: $language: the program does not compile:"
        else
            continue
        fi
        tail -n 15 "$log" | sed 's/^/    /'
    done
}
