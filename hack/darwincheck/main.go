// Command darwincheck type-checks packages that need cgo on macOS, on any system.
//
// Compilers on other systems cannot build cgo for macOS, but type-checking needs no compiler. The
// go command lists the files of each package for darwin/arm64, and go/types checks them with a fake
// import "C". Function bodies are checked only in the packages of this module.
//
//	go run ./hack/darwincheck ./pkg/vm/vz ./cmd/vm
//
// A package of this module must not export a C type, and vz itself must not be an argument, because
// the fake C has no types in a package's API.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// listed is the required part of the output of go list -json.
type listed struct {
	ImportPath, Dir, Name string
	GoFiles, CgoFiles     []string
	ImportMap             map[string]string
	Standard, DepOnly     bool
	Module                *struct{ GoVersion string }
	Error                 *struct{ Err string }
}

func main() {
	count, err := check(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Printf("darwincheck: %d packages type-check for darwin/arm64 with cgo\n", count)
}

func check(patterns []string) (int, error) {
	if len(patterns) == 0 {
		return 0, errors.New("usage: darwincheck PACKAGE...")
	}
	packages, err := list(patterns)
	if err != nil {
		return 0, err
	}
	checked := map[string]*types.Package{"unsafe": types.Unsafe}
	count := 0
	var errs []error
	for _, p := range packages { // dependencies come first
		if p.ImportPath == "unsafe" {
			continue
		}
		if p.Error != nil && !p.DepOnly {
			// Without this check, "build constraints exclude all Go files" would pass.
			errs = append(errs, fmt.Errorf("%s: %s", p.ImportPath, p.Error.Err))
			continue
		}
		errs = append(errs, p.check(checked)...)
		if !p.DepOnly {
			count++
		}
	}
	return count, errors.Join(errs...)
}

func list(patterns []string) ([]*listed, error) {
	cmd := exec.Command("go", append([]string{"list", "-e", "-deps", "-test", "-json"}, patterns...)...)
	cmd.Env = append(os.Environ(), "GOOS=darwin", "GOARCH=arm64", "CGO_ENABLED=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	var packages []*listed
	for decoder := json.NewDecoder(out); ; {
		p := &listed{}
		if err := decoder.Decode(p); errors.Is(err, io.EOF) {
			return packages, cmd.Wait()
		} else if err != nil {
			return nil, err
		}
		if !strings.HasSuffix(p.ImportPath, ".test") { // a generated main
			packages = append(packages, p)
		}
	}
}

func (p *listed) check(checked map[string]*types.Package) []error {
	fset := token.NewFileSet()
	var files []*ast.File
	var errs []error
	for _, name := range append(p.GoFiles, p.CgoFiles...) {
		file, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		files = append(files, file)
	}
	config := types.Config{
		FakeImportC:      true,
		IgnoreFuncBodies: p.DepOnly,
		Sizes:            types.SizesFor("gc", "arm64"),
		Importer: importer(func(path string) (*types.Package, error) {
			if mapped := p.ImportMap[path]; mapped != "" {
				path = mapped
			}
			if dependency := checked[path]; dependency != nil {
				return dependency, nil
			}
			return nil, fmt.Errorf("package %s is missing from the output of go list", path)
		}),
		Error: func(err error) {
			if !p.DepOnly {
				errs = append(errs, err)
			}
		},
	}
	if p.Module != nil && p.Module.GoVersion != "" {
		config.GoVersion = "go" + p.Module.GoVersion
	}
	path, _, _ := strings.Cut(p.ImportPath, " ") // "a [a.test]"
	checked[p.ImportPath], _ = config.Check(path, fset, files, nil)
	return errs
}

type importer func(path string) (*types.Package, error)

func (i importer) Import(path string) (*types.Package, error) { return i(path) }
