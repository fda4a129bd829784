# Makes a host of a virtual LAN look up names in $BED/hosts, in its mount namespace. A minimal
# system has no /etc/hosts to mount on. In this case a copy replaces all of /etc.
[ -e /etc/hosts ] || {
    cp -a /etc "$BED/etc.$LAN_HOST" && : > "$BED/etc.$LAN_HOST/hosts" &&
        mount --bind "$BED/etc.$LAN_HOST" /etc
} && mount --bind "$BED/hosts" /etc/hosts
