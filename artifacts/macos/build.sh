#!/bin/sh
# Builds, signs, packages and notarizes MacRack for Macs and for the images of their guests. It runs on a Mac with Xcode's command line tools and Go 1.26.
#
#   APP_IDENTITY="Developer ID Application: Example (TEAMID)" \
#   INSTALLER_IDENTITY="Developer ID Installer: Example (TEAMID)" \
#   NOTARY_PROFILE=macrack artifacts/macos/build.sh v0.1.0
#
# BIN=folder has programs that were built before, such as macrack-agent of a release; others are built here.
# The identities are in the login keychain; create the profile once with `xcrun notarytool store-credentials macrack`. Without
# identities the programs are signed ad hoc, which is sufficient for your own Mac, and the package is neither signed nor notarized.
set -eu

version=${1:?usage: artifacts/macos/build.sh VERSION}
root=$(cd "$(dirname "$0")/../.." && pwd)
macos=$root/artifacts/macos
out=${OUT:-$root/.dev/macos}
app_identity=${APP_IDENTITY:--}
installer_identity=${INSTALLER_IDENTITY:-}
notary_profile=${NOTARY_PROFILE:-}
payload=$out/payload

[ "$(uname -s)" = Darwin ] || { echo "build.sh runs on a Mac: pkgbuild, codesign and the linker of macrack-vm are Apple's" >&2; exit 1; }

rm -rf "$payload" "$out/scripts"
mkdir -p "$payload/usr/local/bin" "$payload/usr/local/share/macrack/launchd" "$out/scripts"

cd "$root"
export GOOS=darwin GOARCH=arm64 MACOSX_DEPLOYMENT_TARGET=13.0
flags="-s -w -X macrack.io/macrack/pkg/version.Version=$version"
program() {
    target=$payload/usr/local/bin/macrack-$1
    if [ -f "${BIN:-}/macrack-$1" ]; then
        cp "$BIN/macrack-$1" "$target"
    else
        CGO_ENABLED=$2 go build -trimpath -ldflags "$flags" -o "$target" "./cmd/$1"
    fi
}
program agent 0
program vm 1
cp "$macos"/launchd/*.plist "$payload/usr/local/share/macrack/launchd/"
cp "$macos/newsyslog.conf" "$payload/usr/local/share/macrack/"
cp "$macos/scripts/preinstall" "$macos/scripts/postinstall" "$out/scripts/"
chmod 0755 "$out/scripts/preinstall" "$out/scripts/postinstall"
plutil -lint "$macos/vm.entitlements" "$payload"/usr/local/share/macrack/launchd/*.plist

timestamp=--timestamp
[ "$app_identity" = - ] && timestamp=--timestamp=none
codesign --force --options runtime "$timestamp" --identifier io.macrack.agent --sign "$app_identity" "$payload/usr/local/bin/macrack-agent"
codesign --force --options runtime "$timestamp" --identifier io.macrack.vm --entitlements "$macos/vm.entitlements" --sign "$app_identity" "$payload/usr/local/bin/macrack-vm"
codesign --verify --strict "$payload/usr/local/bin/macrack-agent" "$payload/usr/local/bin/macrack-vm"
codesign --display --entitlements - --xml "$payload/usr/local/bin/macrack-vm" | grep -q com.apple.security.virtualization

pkgbuild --root "$payload" --scripts "$out/scripts" --identifier io.macrack.agent --version "${version#v}" --install-location / --ownership recommended "$out/macrack-agent.pkg"
product=$out/macrack-$version.pkg
if [ -n "$installer_identity" ]; then
    productbuild --distribution "$macos/distribution.xml" --package-path "$out" --sign "$installer_identity" --timestamp "$product"
else
    productbuild --distribution "$macos/distribution.xml" --package-path "$out" "$product"
fi

# The package for images: the guest agent and its two jobs.
guest=$out/guest
guest_product=$out/macrack-guest-$version.pkg
rm -rf "$guest"
mkdir -p "$guest/usr/local/bin" "$guest/Library/LaunchDaemons" "$guest/Library/LaunchAgents"
CGO_ENABLED=0 go build -trimpath -ldflags "$flags" -o "$guest/usr/local/bin/macrack-guest-agent" ./cmd/guest-agent
cp "$macos/guest/launchd/io.macrack.guest-agent.plist" "$guest/Library/LaunchDaemons/"
cp "$macos/guest/launchd/io.macrack.guest-session.plist" "$guest/Library/LaunchAgents/"
plutil -lint "$guest"/Library/*/*.plist
codesign --force --options runtime "$timestamp" --identifier io.macrack.guest-agent --sign "$app_identity" "$guest/usr/local/bin/macrack-guest-agent"
set -- --root "$guest" --scripts "$macos/guest/scripts" --identifier io.macrack.guest-agent --version "${version#v}" --install-location / --ownership recommended
if [ -n "$installer_identity" ]; then
    set -- "$@" --sign "$installer_identity" --timestamp
fi
pkgbuild "$@" "$guest_product"

for package in "$product" "$guest_product"; do
    if [ -n "$notary_profile" ]; then
        xcrun notarytool submit "$package" --keychain-profile "$notary_profile" --wait
        xcrun stapler staple "$package"
        spctl --assess --type install --verbose "$package"
    fi
    echo "$package"
done
