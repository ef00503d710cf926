#!/bin/sh
# Builds, signs, packages and notarizes MacRack for Macs. It runs on a Mac with Xcode's command line tools and Go 1.26.
#
#   APP_IDENTITY="Developer ID Application: Example (TEAMID)" \
#   INSTALLER_IDENTITY="Developer ID Installer: Example (TEAMID)" \
#   NOTARY_PROFILE=macrack artifacts/macos/build.sh v0.1.0
#
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
CGO_ENABLED=0 go build -trimpath -ldflags "$flags" -o "$payload/usr/local/bin/macrack-agent" ./cmd/agent
CGO_ENABLED=1 go build -trimpath -ldflags "$flags" -o "$payload/usr/local/bin/macrack-vm" ./cmd/vm
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
if [ -n "$notary_profile" ]; then
    xcrun notarytool submit "$product" --keychain-profile "$notary_profile" --wait
    xcrun stapler staple "$product"
    spctl --assess --type install --verbose "$product"
fi
echo "$product"
