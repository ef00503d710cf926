package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

const (
	krewFile   = "macrack.yaml"
	pluginName = "kubectl-macrack"
)

// krewManifest is the manifest of a plugin of kubectl for krew
// (https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest/).
type krewManifest struct {
	APIVersion string       `json:"apiVersion"`
	Kind       string       `json:"kind"`
	Metadata   krewMetadata `json:"metadata"`
	Spec       krewSpec     `json:"spec"`
}

type krewMetadata struct {
	Name string `json:"name"`
}

type krewSpec struct {
	Version          string         `json:"version"`
	ShortDescription string         `json:"shortDescription"`
	Description      string         `json:"description"`
	Platforms        []krewPlatform `json:"platforms"`
}

type krewPlatform struct {
	Selector krewSelector `json:"selector"`
	URI      string       `json:"uri"`
	SHA256   string       `json:"sha256"`
	Bin      string       `json:"bin"`
}

type krewSelector struct {
	MatchLabels map[string]string `json:"matchLabels"`
}

// krew returns the manifest for the archives of the plugin in a release. Sums are the checksums of
// all archives by name.
func (r *release) krew(sums map[string]string) (*krewManifest, error) {
	m := &krewManifest{
		APIVersion: "krew.googlecontainertools.github.com/v1alpha2", Kind: "Plugin", Metadata: krewMetadata{Name: "macrack"},
		Spec: krewSpec{
			Version:          r.version,
			ShortDescription: "See and use leased Macs of MacRack",
			Description: "Shows the Macs, leases and instances of MacRack, explains what they wait for,\n" +
				"and opens virtual machines, with the rights of the user.\n",
		},
	}
	prefix := pluginName + "_" + strings.TrimPrefix(r.version, "v") + "_"
	for _, archive := range slices.Sorted(maps.Keys(sums)) {
		platform, found := strings.CutPrefix(archive, prefix)
		if !found {
			continue
		}
		system, arch, ok := strings.Cut(strings.TrimSuffix(platform, ".tar.gz"), "_")
		if !ok {
			return nil, fmt.Errorf("%s has no platform in its name", archive)
		}
		m.Spec.Platforms = append(m.Spec.Platforms, krewPlatform{
			Selector: krewSelector{MatchLabels: map[string]string{"os": system, "arch": arch}},
			URI:      r.url + "/" + r.version + "/" + archive, SHA256: sums[archive], Bin: pluginName,
		})
	}
	if len(m.Spec.Platforms) == 0 {
		return nil, fmt.Errorf("no archive of %s", pluginName)
	}
	return m, nil
}

// writeKrew writes the manifest into the folder of the release.
func (r *release) writeKrew(sums map[string]string) error {
	m, err := r.krew(sums)
	if err != nil {
		return err
	}
	data, err := yaml.Marshal(m)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.dir, krewFile), data, 0o644)
}
