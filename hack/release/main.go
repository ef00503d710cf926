// Release checks the archives of a release in a folder: their checksums, and that every binary in
// them has the version and the commit of the release. It adds the manifest of the plugin for krew.
package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
)

func main() {
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "usage: release FOLDER VERSION COMMIT URL")
		os.Exit(2)
	}
	r := release{dir: os.Args[1], version: os.Args[2], commit: os.Args[3], url: os.Args[4]}
	sums, err := r.check()
	if err == nil {
		err = r.writeKrew(sums)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
	fmt.Printf("release: version=%s archives=%d binaries=%d\n", r.version, r.archives, r.binaries)
}

type release struct {
	dir, version, commit string
	// url is the URL of the folder that has a folder for each release.
	url                string
	archives, binaries int
}

// check checks the archives that the file of checksums lists, and returns their checksums. All
// archives must be in it.
func (r *release) check() (map[string]string, error) {
	sums, err := filepath.Glob(filepath.Join(r.dir, "*_sha256sums.txt"))
	if err != nil || len(sums) != 1 {
		return nil, errors.Join(err, fmt.Errorf("%d files of checksums in %s, not 1; run make release-snapshot", len(sums), r.dir))
	}
	list, err := os.ReadFile(sums[0])
	if err != nil {
		return nil, err
	}
	listed := map[string]string{}
	for lines := bufio.NewScanner(bytes.NewReader(list)); lines.Scan(); {
		sum, name, ok := strings.Cut(lines.Text(), "  ")
		if !ok {
			return nil, fmt.Errorf("invalid line of checksums %q", lines.Text())
		}
		listed[name] = sum
		if err := r.checkArchive(name, sum); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	archives, err := filepath.Glob(filepath.Join(r.dir, "*.tar.gz"))
	for _, archive := range archives {
		if name := filepath.Base(archive); listed[name] == "" {
			err = errors.Join(err, fmt.Errorf("%s has no checksum", name))
		}
	}
	if err == nil && r.binaries == 0 {
		err = errors.New("no archive has a binary")
	}
	return listed, err
}

func (r *release) checkArchive(name, sum string) error {
	data, err := os.ReadFile(filepath.Join(r.dir, name))
	if err != nil {
		return err
	}
	if got := fmt.Sprintf("%x", sha256.Sum256(data)); got != sum {
		return fmt.Errorf("its checksum is %s, not %s", got, sum)
	}
	r.archives++
	unzipped, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return err
	}
	files := tar.NewReader(unzipped)
	licensed := false
	for {
		header, err := files.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		licensed = licensed || header.Name == "LICENSE"
		base := path.Base(header.Name)
		if header.Typeflag != tar.TypeReg || !strings.HasPrefix(base, "macrack-") && base != pluginName {
			continue
		}
		binary, err := io.ReadAll(files)
		if err != nil {
			return err
		}
		r.binaries++
		native := strings.Contains(name, "_"+runtime.GOOS+"_"+runtime.GOARCH)
		if err := r.checkBinary(base, binary, native); err != nil {
			return fmt.Errorf("%s: %w", base, err)
		}
	}
	if !licensed {
		return errors.New("it has no LICENSE")
	}
	return nil
}

// checkBinary runs a binary of this platform with --version. Others must have the text in them.
func (r *release) checkBinary(name string, binary []byte, native bool) error {
	if !native {
		for _, text := range []string{r.version, r.commit} {
			if !bytes.Contains(binary, []byte(text)) {
				return fmt.Errorf("it does not contain %s", text)
			}
		}
		return nil
	}
	dir, err := os.MkdirTemp("", "release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, name)
	if err := os.WriteFile(file, binary, 0o755); err != nil {
		return err
	}
	out, err := exec.Command(file, "--version").Output()
	if err != nil {
		return err
	}
	if want := fmt.Sprintf("%s version %s (commit %s)", name, r.version, r.commit); strings.TrimSpace(string(out)) != want {
		return fmt.Errorf("--version prints %q, not %q", strings.TrimSpace(string(out)), want)
	}
	return nil
}
