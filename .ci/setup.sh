# Sourced by test/run, bench/run and .ci/run: packages, configuration, and where an RDMA device is.
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
jobs=$(nproc)
log=$(mktemp)
trap 'rm -f "$log"' EXIT

build_packages=(g++ meson ninja-build pkg-config libibverbs-dev librdmacm-dev ibverbs-providers ibverbs-utils
    liburing-dev catch2 libfmt-dev libasio-dev)
vm_packages=(qemu-system-x86 busybox-static cpio kmod xz-utils iproute2 rdma-core make)
ci_packages=(git ccache clang-19 clang-format-19 libclang-rt-19-dev doxygen)

say() { printf '\n== %s\n' "$*"; }
die() {
    printf '%s: %s\n' "${0#"$root"/}" "$*" >&2
    exit 2
}

# Whether what the Debian package $1 brings is here, however it came.
is_here() {
    local PATH=$PATH:/usr/sbin:/sbin
    case $1 in
    g++ | meson | pkg-config | cmake | cpio | make | git | ccache | clang-format-19 | valgrind | doxygen) command -v "$1" ;;
    ninja-build) command -v ninja ;;
    libibverbs-dev) pkg-config --exists libibverbs ;;
    librdmacm-dev) pkg-config --exists librdmacm ;;
    ibverbs-providers) compgen -G '/usr/lib*/*/libibverbs/librxe-rdmav*.so' || compgen -G '/usr/lib*/libibverbs/librxe-rdmav*.so' ;;
    ibverbs-utils) command -v ibv_devinfo ;;
    liburing-dev) pkg-config --exists 'liburing >= 2.3' ;;
    catch2) pkg-config --exists 'catch2 >= 2.13' ;;
    libfmt-dev) pkg-config --exists 'fmt >= 9' ;;
    libasio-dev) compgen -G '/usr/*include/asio.hpp' || compgen -G '/usr/local/include/asio.hpp' ;;
    qemu-system-x86) command -v qemu-system-x86_64 ;;
    busybox-static) command -v busybox && ! ldd "$(command -v busybox)" ;;
    kmod) command -v modprobe && command -v depmod ;;
    xz-utils) command -v xz ;;
    iproute2) command -v ip && command -v rdma ;;
    rdma-core) [ -d /etc/libibverbs.d ] ;;
    clang-19) command -v clang++-19 ;;
    libclang-rt-19-dev) compgen -G '/usr/lib/llvm-19/lib/clang/19/lib/*/*clang_rt.tsan*.a' ;;
    *) false ;;
    esac >/dev/null 2>&1
}

# Installs what is missing of the given packages on Debian; elsewhere names it.
install_packages() {
    local package missing=() as_root=()
    for package; do is_here "$package" || missing+=("$package"); done
    [ ${#missing[@]} -gt 0 ] || return 0
    command -v apt-get >/dev/null || die "missing here, by the names of Debian's packages: ${missing[*]}"
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null || die "missing, and neither root nor sudo is here: apt-get install ${missing[*]}"
        as_root=(sudo)
    fi
    say "installing ${missing[*]}"
    "${as_root[@]}" apt-get update >"$log" 2>&1 &&
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
            apt-get install -y --no-install-recommends "${missing[@]}" >"$log" 2>&1 ||
        { cat "$log" >&2; die "apt-get could not install ${missing[*]}"; }
    for package in "${missing[@]}"; do
        is_here "$package" || die "the package $package is installed, but too old here, or incomplete"
    done
}

# FOLDER [OPTION OF MESON...]
configure() {
    local again=()
    [ ! -e "$root/$1/build.ninja" ] || again=(--reconfigure)
    say "configuring $*"
    meson setup "${again[@]}" "$root/$1" "$root" "${@:2}" >"$log" 2>&1 || { cat "$log"; return 1; }
}

# FOLDER [TARGET...]
build() {
    say "building $*"
    ninja -C "$root/$1" -j "$jobs" -k 0 "${@:2}"
}

# The first RDMA device here, or nothing.
device_here() {
    local device
    for device in /sys/class/infiniband/*; do
        if [ -e "$device" ] && compgen -G '/dev/infiniband/uverbs*' >/dev/null; then
            basename "$device"
            return
        fi
    done
}

# The tracked files that exist, and those that will be tracked; `-c`, as a clone may belong to another user.
project_files() {
    local file
    git -c safe.directory='*' -C "$root" ls-files --cached --others --exclude-standard "$@" | sort -u |
        while read -r file; do [ ! -e "$root/$file" ] || printf '%s\n' "$file"; done
}
