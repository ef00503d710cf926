# Does a part of the setup of a guest that has tart's guest agent:
#
#   keys UID                  adds the lines of its input to authorized_keys
#   start UID SIZE VARIABLES  starts the startup script of SIZE bytes unless it was started; its input
#                             has VARIABLES bytes of quoted words NAME=VALUE, and then the script
#   follow UID OFFSET LIMIT   prints the output of the script up to LIMIT bytes from OFFSET on until
#                             the script ends, and its exit code as error output; exits with 75 if
#                             the script ended without one, as after a restart of the guest
#
# It runs with the shell of macOS and with that of Linux, where the tests run.
set -eu
umask 077
action=$1
dir=$HOME/.macrack/$2

boot() { sysctl -n kern.bootsessionuuid 2>/dev/null || cat /proc/sys/kernel/random/boot_id 2>/dev/null || echo unknown; }

# The directory is made before the script runs, and only once. So the script never runs twice.
start() {
	[ ! -d "$dir" ] || return 0
	mkdir -p "$HOME/.macrack"
	new=$dir.new.$$
	trap 'rm -rf "$new"' EXIT
	mkdir "$new"
	# The variables stay in the memory of this shell. head could read more than their length.
	variables=
	[ "$2" -eq 0 ] || variables=$(dd bs=1 count="$2" 2>/dev/null && echo .)
	cat >"$new/script"
	# A lost connection must not run half a script.
	[ "$(($(wc -c <"$new/script")))" -eq "$1" ] || { echo "the script is incomplete" >&2; exit 74; }
	chmod 700 "$new/script"
	boot >"$new/boot"
	: >"$new/output"
	case $(head -c 2 "$new/script") in
	'#!') shell= ;;
	*) shell=/bin/sh ;;
	esac
	mkdir "$dir"
	mv "$new"/* "$dir"
	(
		trap - EXIT
		trap '' HUP
		cd "$HOME"
		code=0
		eval "set -- ${variables%.}"
		env -- ${1+"$@"} $shell "$dir/script" >"$dir/output" 2>&1 || code=$?
		rm -f "$dir/script"
		echo $code >"$dir/code.new"
		mv "$dir/code.new" "$dir/code"
	) </dev/null >/dev/null 2>&1 &
	echo $! >"$dir/pid"
}

runs() { [ "$(boot)" = "$(cat "$dir/boot")" ] && kill -0 "$(cat "$dir/pid")"; }

follow() {
	sent=$1
	while :; do
		end=
		if [ ! -e "$dir/code" ] && ! runs 2>/dev/null; then end=lost; fi
		if [ -e "$dir/code" ]; then end=code; fi
		size=0
		if [ -e "$dir/output" ]; then size=$(($(wc -c <"$dir/output"))); fi
		[ "$size" -le "$2" ] || size=$2
		if [ "$size" -gt "$sent" ]; then
			tail -c "+$((sent + 1))" "$dir/output" | head -c "$((size - sent))"
			sent=$size
		fi
		case $end in
		code) cat "$dir/code" >&2; exit 0 ;;
		lost) exit 75 ;;
		esac
		sleep 1
	done
}

case $action in
keys)
	mkdir -p "$HOME/.ssh"
	file=$HOME/.ssh/authorized_keys
	touch "$file"
	[ -z "$(tail -c 1 "$file")" ] || echo >>"$file"
	while IFS= read -r key; do
		grep -qxF -e "$key" "$file" || printf '%s\n' "$key" >>"$file"
	done
	;;
start) start "$3" "${4:-0}" ;;
follow) follow "$3" "$4" ;;
esac
