# Finds what is missing on this machine, and installs it.  Sourced by ./run, which defines title, note, step
# and result.
#
# look_around fills three lists: needed and optional hold package names, of Debian or, where dnf installs (Fedora,
# RHEL, CentOS Stream), of Fedora; lines holds what to show for each.  It tests for a library by using it, never by asking dpkg: on a
# cluster a library comes from a module, and the compiler from anywhere.

needed=() optional=() lines=()

# apt, dnf, or nothing.
manager=
if command -v apt-get >/dev/null 2>&1; then manager=apt; elif command -v dnf >/dev/null 2>&1; then manager=dnf; fi

# fedora_name PACKAGE: what Fedora calls a package of Debian; nothing where it has none.
fedora_name() {
    case $1 in
    libc6-dev) echo glibc-devel ;;
    g++) echo gcc-c++ ;;
    libcurl4-openssl-dev) echo libcurl-devel ;;
    libsnappy-dev) echo snappy-devel ;;
    zlib1g-dev) echo zlib-devel ;;
    libclang-rt*) echo compiler-rt ;;
    clang-format) echo clang-tools-extra ;;
    clang-tidy) echo clang-tools-extra ;;
    libopenmpi-dev) echo openmpi-devel ;;
    xz-utils) echo xz ;;
    libsqlite3-dev) echo sqlite-devel ;;
    libxgboost-dev) ;;
    *-dev) echo "${1%-dev}-devel" ;;
    *) echo "$1" ;;
    esac
}

# missing needed|optional PACKAGE WHY
missing() {
    if [ "$manager" = dnf ]; then
        set -- "$1" "$(fedora_name "$2")" "$3"
        [ -n "$2" ] || return 0
    fi
    if [ "$1" = needed ]; then needed+=("$2"); else optional+=("$2"); fi
    lines+=("$(printf '%-22s %-9s %s' "$2" "$1" "$3")")
}

has() { command -v "$1" >/dev/null 2>&1; }

# The package of clang's sanitizer and fuzzer runtimes; older releases have it by version only.
clang_runtime_package() {
    local name version
    name=libclang-rt-dev
    if has apt-cache && ! apt-cache show $name >/dev/null 2>&1; then
        version=$(apt-cache depends clang 2>/dev/null | sed -n 's/.*Depends: clang-\([0-9]*\)$/\1/p' | head -n 1)
        [ -n "$version" ] && name=libclang-rt-$version-dev
    fi
    echo "$name"
}

clang_can_fuzz() {
    has clang && echo 'int LLVMFuzzerTestOneInput(const char *d, unsigned long n) { return d == 0 && n; }' |
        clang -x c -fsanitize=fuzzer,address,undefined -o /dev/null - 2>/dev/null
}

# look_around demo|bench|test
look_around() {
    local found=''
    needed=() optional=() lines=()
    if has gcc || has cc || has clang; then
        found=$(make_probe)
    else
        missing needed gcc "the C compiler"
        found=HSTU_NO_COMPILER
    fi
    # Debian's compilers come without the C library's headers when recommended packages are left out.
    [[ $found == *HSTU_NO_COMPILER* ]] && missing needed libc6-dev "the C library's headers"
    has make || missing needed make "builds the program"
    [[ $found == *HSTU_HAS_ARCHIVE* ]] ||
        missing optional libarchive-dev "reads .zip, .tar.gz and .xz data sets as they are"
    [[ $found == *HSTU_HAS_CURL* ]] || missing optional libcurl4-openssl-dev "'hstu prep --download'"
    [[ $found == *HSTU_HAS_MICROHTTPD* ]] || missing optional libmicrohttpd-dev "'hstu serve'"
    [[ $found == *HSTU_HAS_SQLITE* ]] || missing optional libsqlite3-dev "'hstu serve --state': users' events"
    [[ $found == *HSTU_HAS_SNAPPY* ]] || missing optional libsnappy-dev "'hstu prep parquet': SNAPPY columns"
    [[ $found == *HSTU_HAS_ZSTD* ]] || missing optional libzstd-dev "'hstu prep parquet': ZSTD columns"
    [[ $found == *HSTU_HAS_ZLIB* ]] || missing optional zlib1g-dev "'hstu prep parquet': GZIP columns"
    [ -e /etc/ssl/certs/ca-certificates.crt ] || [ -d /etc/pki ] ||
        missing optional ca-certificates "https of 'hstu prep --download'"
    if has nvcc && ! has g++; then missing optional g++ "nvcc needs it: no CUDA parts without"; fi
    [ "$1" = test ] || return 0
    [ -n "${HSTU_XGBOOST:-}" ] || ldconfig -p 2>/dev/null | grep -q libxgboost.so ||
        missing optional libxgboost-dev "the cost model of 'hstu tune'"
    has clang || missing optional clang "the second compiler, and the fuzz tests"
    clang_can_fuzz || missing optional "$(clang_runtime_package)" "the fuzz tests (libFuzzer)"
    has clang-format || missing optional clang-format "the check of the code's format"
    has clang-tidy || missing optional clang-tidy "the lint of the code"
    has mpicc || missing optional libopenmpi-dev "ranks that mpirun starts"
    has xz || missing optional xz-utils "tests of compressed input"
}

make_probe() {
    local compiler
    compiler=$(command -v gcc || command -v cc || command -v clang)
    CC=$compiler PROBE_FLAGS="${CFLAGS:-} ${LDFLAGS:-}" sh tools/probe.sh
}

# How to become root: nothing, "sudo -n", or "sudo" (which asks for a password: only for needed packages,
# only on a terminal); fails if there is no way.
root_prefix() {
    [ "$(id -u)" = 0 ] && return 0
    has sudo || return 1
    if sudo -n true 2>/dev/null; then
        echo "sudo -n"
    elif [ ${#needed[@]} -gt 0 ] && [ -t 0 ] && [ -t 1 ]; then
        echo sudo
    else
        return 1
    fi
}

# apt COMMAND...: apt-get that asks nothing and gives up on a dead network within seconds.
apt() {
    # shellcheck disable=SC2086  # the prefix is several words on purpose
    $prefix env DEBIAN_FRONTEND=noninteractive LC_ALL=C apt-get -y -q \
        -o Acquire::http::Timeout=15 -o Acquire::https::Timeout=15 -o Acquire::Retries=1 \
        -o DPkg::Lock::Timeout=120 "$@"
}

# An old list is often good enough, and one source may fail; but where none answers, every package would be waited for.
apt_update() {
    local list code=0
    # shellcheck disable=SC2086
    list=$($prefix env LC_ALL=C timeout -k 5 30 apt-get -q -o Acquire::http::Timeout=10 -o Acquire::https::Timeout=10 \
        -o Acquire::Retries=0 -o DPkg::Lock::Timeout=20 update 2>&1) || code=$?
    echo "$list"
    if ! grep -qE '^(Get|Hit):' <<<"$list" && { [ $code = 124 ] || grep -q '^Err:' <<<"$list"; }; then
        echo "No source of packages answers: nothing is installed."
        return 1
    fi
    [ $code != 124 ] || apt update || true # It is slow, but it answers.
}

# Half of the libraries' headers are in a repository that RHEL and CentOS Stream do not enable by themselves.
dnf_install() {
    local extra=()
    if $prefix dnf -q repolist --all 2>/dev/null | grep -q '^crb '; then extra=(--enablerepo=crb); fi
    # shellcheck disable=SC2086
    $prefix dnf -y --setopt=install_weak_deps=False --setopt=timeout=15 --setopt=retries=1 "${extra[@]}" install "$@"
}

install_with_dnf() {
    local package
    dnf_install "${needed[@]}" "${optional[@]}" && return 0
    [ ${#needed[@]} -eq 0 ] || dnf_install "${needed[@]}" || return 1
    for package in "${optional[@]}"; do
        dnf_install "$package" || true
    done
}

# Installs all packages; if an optional one does not exist here, installs the others.
install_packages() {
    local package
    if [ "$manager" = dnf ]; then install_with_dnf; return; fi
    apt_update || return 1
    look_around "$1"   # Some names are known only once the lists are.
    apt install --no-install-recommends "${needed[@]}" "${optional[@]}" && return 0
    [ ${#needed[@]} -eq 0 ] || apt install --no-install-recommends "${needed[@]}" || return 1
    for package in "${optional[@]}"; do
        apt install --no-install-recommends "$package" || true
    done
}

# Says what to do if nothing can be installed; fails if something needed is missing.
explain() {
    local list="${needed[*]} ${optional[*]}" line sudo='sudo '
    [ "$(id -u)" = 0 ] && sudo=''
    echo
    echo "  $1 Type this where you may:"
    echo
    if [ "$manager" = dnf ]; then
        # shellcheck disable=SC2086
        echo "    ${bold}${sudo}dnf install -y$(printf ' %s' $list)${plain}"
        echo
        echo "  On RHEL and CentOS Stream some are in CRB and EPEL: ${sudo}dnf install -y epel-release && ${sudo}dnf config-manager --set-enabled crb"
    else
        # shellcheck disable=SC2086
        echo "    ${bold}${sudo}apt-get update && ${sudo}apt-get install -y$(printf ' %s' $list)${plain}"
    fi
    echo
    if [ ${#needed[@]} -gt 0 ]; then
        echo "  Without ${needed[*]} nothing can be built."
        echo "  A compiler kept elsewhere: put it on PATH."
        return 1
    fi
    echo "  Going on without them; each one missing costs:"
    for line in "${lines[@]}"; do
        echo "    ${line/ optional / }"
    done
}

say_cuda() {
    local at
    if has nvcc && [ "${CUDA:-}" = 0 ]; then
        note "nvcc is here, and CUDA=0 leaves the CUDA parts out."
        return
    fi
    if has nvcc && has g++; then
        note "nvcc $(nvcc --version | sed -n 's/.*release \([0-9.]*\).*/\1/p') is here: the CUDA parts are built too."
        return
    fi
    for at in /usr/local/cuda/bin /opt/cuda/bin; do
        [ -x $at/nvcc ] && ! has nvcc && note "nvcc is in $at but not on PATH: the CUDA parts are left out."
    done
    return 0
}

# setup demo|bench|test: finds what is missing, says so, installs it, looks again.  Fails only if something
# needed is still missing.
setup() {
    local line prefix
    title "Setting up"
    look_around "$1"
    if [ ${#lines[@]} -eq 0 ]; then
        note "Everything is here: compiler, make, libarchive, libcurl."
        say_cuda
        return 0
    fi
    for line in "${lines[@]}"; do
        echo "  missing  $line"
    done
    if [ "${HSTU_INSTALL:-1}" = 0 ]; then
        explain "HSTU_INSTALL=0: nothing is installed." || return 1
    elif [ -z "$manager" ]; then
        explain "There is neither apt-get nor dnf here." || return 1
    elif ! prefix=$(root_prefix); then
        explain "Installing needs root or sudo." || return 1
    else
        [ "$prefix" = sudo ] && sudo -v
        tail_lines=6 step "$([ $manager = dnf ] && echo dnf || echo apt-get) install" install_packages "$1"
        look_around "$1"
        [ ${#lines[@]} -eq 0 ] || explain "Not everything could be installed (is the network there?)." ||
            return 1
    fi
    say_cuda
}
