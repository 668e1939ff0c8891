#!/bin/bash
# make image: an OCI image for each TARGET (default: this machine's) without root, a registry or a container engine: Debian 12's
# C library and base-files, and the program of `make dist`.  build/image/TARGET is an OCI layout (`skopeo copy oci:...`),
# build/image/hstu-VERSION-oci-TARGET.tar the same as a file (`podman load -i`, `docker load -i` from 25.0 on).  Equal packages and
# an equal program give equal bytes.
# usage: tools/image.sh VERSION [TARGET...]
set -eu
cd "$(dirname "$0")/.."
. tools/debian.sh
version=$1
shift
[ $# -gt 0 ] || set -- "$(uname -m)"
out=$PWD/build/image
epoch=315532800
cannot() { echo "make image: $*" >&2; exit 77; }

# blob FILE: moves it to where its hash says, and prints it as a descriptor without its media type.
blob() {
    local hash size
    hash=$(sha256sum "$1" | cut -d' ' -f1) size=$(stat -c %s "$1")
    mv "$1" "blobs/sha256/$hash"
    printf '"digest":"sha256:%s","size":%s' "$hash" "$size"
}

tar_of() { tar --sort=name --mtime=@$epoch --numeric-owner --format=gnu "$@"; }

# layer ROOT: the folder as a layer; /data and /home/hstu are the user's.
layer() {
    local own=(./data ./home/hstu)
    tar_of --owner=0 --group=0 "${own[@]/#/--exclude=}" -C "$1" -cf layer.tar .
    tar_of --owner=1000 --group=1000 -C "$1" -rf layer.tar "${own[@]}"
    diff=sha256:$(sha256sum layer.tar | cut -d' ' -f1)
    gzip -n -9 layer.tar
    layer=$(blob layer.tar.gz)
}

image() {
    local root=$out/root-$1 place=$out/$1 architecture manifest diff layer config
    architecture=$(case $1 in x86_64) echo amd64 ;; aarch64) echo arm64 ;; *) echo "$1" ;; esac)
    rm -rf "$root" "$place" && mkdir -p "$root"/{data,home/hstu,tmp,etc} "$place/blobs/sha256"
    debian_unpack "$out/apt-$1" "$root" "$architecture" libc6 libgcc-s1 base-files ||
        cannot "Debian's packages cannot be had ($out/apt-$1/log)"
    install -D "build/dist/hstu-$version-linux-$1" "$root/usr/bin/hstu"
    mkdir -p "$root/usr/share/hstu" && cp -r configs "$root/usr/share/hstu"
    printf 'root:x:0:0::/root:/sbin/nologin\nhstu:x:1000:1000::/home/hstu:/sbin/nologin\n' >"$root/etc/passwd"
    printf 'root:x:0:\nhstu:x:1000:\n' >"$root/etc/group"
    chmod -R u=rwX,go=rX "$root" && chmod 1777 "$root/tmp"
    cd "$place"
    layer "$root"
    cat >config <<END
{"created":"1980-01-01T00:00:00Z","architecture":"$architecture","os":"linux","config":{"User":"1000:1000","WorkingDir":"/data",
"Env":["PATH=/usr/bin:/bin","HOME=/home/hstu"],"Entrypoint":["hstu"],"ExposedPorts":{"8080/tcp":{}},"StopSignal":"SIGTERM",
"Cmd":["serve","run","--data","data","--host","0.0.0.0","--port","8080"],"Labels":{"org.opencontainers.image.title":"hstu",
"org.opencontainers.image.version":"$version","org.opencontainers.image.licenses":"MIT"}},
"rootfs":{"type":"layers","diff_ids":["$diff"]}}
END
    config=$(blob config)
    cat >manifest <<END
{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json",
"config":{"mediaType":"application/vnd.oci.image.config.v1+json",$config},
"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip",$layer}]}
END
    manifest=$(blob manifest)
    echo '{"imageLayoutVersion":"1.0.0"}' >oci-layout
    cat >index.json <<END
{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[
{"mediaType":"application/vnd.oci.image.manifest.v1+json",$manifest,"platform":{"architecture":"$architecture","os":"linux"},
"annotations":{"org.opencontainers.image.ref.name":"$version","io.containerd.image.name":"localhost/hstu:$version"}}]}
END
    tar_of --owner=0 --group=0 -cf "$out/hstu-$version-oci-$1.tar" oci-layout index.json blobs
    cd - >/dev/null
    (cd "$out" && sha256sum "hstu-$version-oci-$1.tar")
}

for target in "$@"; do image "$target"; done
