#!/usr/bin/env bash
# Measures scripts/quickstart.sh of this commit from a bare Debian: makes one in a folder with debootstrap, clones the
# commit there and runs the script as a new user would, without a compiler cache. Prints the seconds of each phase.
#   scripts/bench/quickstart_chroot.sh [--root folder] [--nvcc] [setting...]
#     --root    where to make the system; removed before and afterwards (default: a new folder in /tmp)
#     --nvcc    the new system sees this machine's CUDA toolkit, as on a machine with nvcc and without a GPU
# MTRAIN_CPU_ISA is passed on: avx2 stands for a host that has nothing wider. Needs root and debootstrap. Packages come
# from this machine's cache where it has them, and are left there.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

root='' nvcc=0
while (($#)); do
  case $1 in
    --root) root=${2:-} && shift 2 ;;
    --nvcc) nvcc=1 && shift ;;
    -h | --help) usage && exit 0 ;;
    -*) die "unknown option $1" ;;
    *) break ;;
  esac
done
((EUID == 0)) || die "needs root"
command -v debootstrap >/dev/null || die "debootstrap is missing: apt-get install debootstrap"
[[ -n $root ]] || root=$(mktemp -d /tmp/mtrain-bare-XXXXXX)
root=$(realpath -m "$root")
[[ ! -e $root || -z $(ls -A "$root") || -e $root/mtrain-bare ]] || die "$root has other files"
packages=/var/cache/apt/archives

# All mounts are in a namespace of their own, which ends with the script.
if [[ -z ${MTRAIN_BARE_NAMESPACE:-} ]]; then
  options=(--root "$root")
  if ((nvcc)); then options+=(--nvcc); fi
  MTRAIN_BARE_NAMESPACE=1 exec unshare --mount --propagation private "$script" "${options[@]}" "$@"
fi

make_root() {
  rm -rf --one-file-system "$root"
  mkdir -p "$root"
  touch "$root/mtrain-bare"
  local mirror
  mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null |
    sed -nE 's/^(URIs:|deb( +\[[^]]*\])?) +([^ ]+).*/\3/p' | head -n 1 || true)
  debootstrap --variant=minbase --cache-dir="$packages" bookworm "$root" ${mirror:+"$mirror"} >"$root.log" 2>&1 ||
    { tail -n 5 "$root.log" && return 1; }
  rm -f "$root.log"
  # The network as this machine sees it: names, proxies, certificates.
  cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
  # Settings that run commands may empty the cache of packages, as a container's do.
  grep -LZ 'Invoke' /etc/apt/apt.conf.d/* | xargs -0 -r cp -t "$root/etc/apt/apt.conf.d/"
  mount -t proc proc "$root/proc"
  mount --rbind /dev "$root/dev"
  mount --rbind /sys "$root/sys"
  mkdir -p "$root$packages"
  mount --bind "$packages" "$root$packages"
  if ((nvcc)); then
    local toolkit
    toolkit=$(realpath "$(dirname "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")/..")
    mkdir -p "$root/usr/local/cuda"
    mount --bind "$toolkit" "$root/usr/local/cuda"
  fi
  git -c safe.directory='*' clone --quiet . "$root/mtrain"
}
# The new system gets the variables of the network and of the instruction set, and no others.
inside() {
  local name
  local -a variables=(HOME=/root "PATH=/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
  for name in MTRAIN_CPU_ISA http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
    [[ -z ${!name:-} ]] || variables+=("$name=${!name}")
  done
  env -i "${variables[@]}" CCACHE_DISABLE=1 chroot "$root" bash -c 'cd /mtrain && "$@"' - "$@"
}
# Unmounts before anything is removed; the folders of this machine are never entered.
clean() {
  local place
  for place in "usr/local/cuda" "${packages#/}" sys dev proc; do umount -R -l "$root/$place" 2>/dev/null || true; done
  if findmnt -rno TARGET | grep -q "^$root/"; then
    say "$root has mounts and is left"
  else
    rm -rf --one-file-system "$root"
  fi
}
trap clean EXIT

say "commit $(git describe --always --dirty), $(nproc) cores, $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), MTRAIN_CPU_ISA=${MTRAIN_CPU_ISA:-}"
phase "a bare Debian" make_root
phase "quickstart" inside scripts/quickstart.sh "$@"
print_phases
