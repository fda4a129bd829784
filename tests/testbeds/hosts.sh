# For a mount namespace of a host of a virtual LAN: there, names are looked up in $BED/hosts. A
# minimal system has no /etc/hosts to mount on: then all of /etc is replaced by a copy.
[ -e /etc/hosts ] || {
    cp -a /etc "$BED/etc.$LAN_HOST" && : > "$BED/etc.$LAN_HOST/hosts" &&
        mount --bind "$BED/etc.$LAN_HOST" /etc
} && mount --bind "$BED/hosts" /etc/hosts
