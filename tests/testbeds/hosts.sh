# For a mount namespace of a host of a virtual LAN: names are looked up in $BED/hosts there. A
# minimal system has no file that one could be mounted on: then all of /etc is a copy.
[ -e /etc/hosts ] || {
    cp -a /etc "$BED/etc.$LAN_HOST" && : > "$BED/etc.$LAN_HOST/hosts" &&
        mount --bind "$BED/etc.$LAN_HOST" /etc
} && mount --bind "$BED/hosts" /etc/hosts
