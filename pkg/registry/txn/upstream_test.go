package txn_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// upstream has the hashes of functions of k8s.io/apiserver, without their comments, by file. When
// one changes with an upgrade, read its diff, change this package if necessary, and update the
// hash.
var upstream = map[string]map[string]string{
	// decorator.go and dial.go follow these functions.
	"pkg/registry/generic/registry/storage_factory.go": {
		"StorageWithCacher": "6d1699e88f5e",
	},
	"pkg/storage/storagebackend/factory/etcd3.go": {
		"newETCD3Storage":    "c66428e870b9",
		"startCompactorOnce": "a42692295d47",
		"newETCD3Client":     "dd92be35f83d",
		"blockUntilReady":    "280201485c63",
	},
	// store.go and client.go rely on how these functions call the planner and the client.
	"pkg/storage/etcd3/store.go": {
		"store.Create":             "70b052b879be",
		"store.Delete":             "5a62f383d8de",
		"store.conditionalDelete":  "63ddb370a039",
		"store.GuaranteedUpdate":   "e1f963e7e1c7",
		"store.getCurrentState":    "3cc46840d6e0",
		"store.getStateFromObject": "923764ed7de8",
		"store.updateState":        "10d5dfafdf02",
		// undecodable.go relies on how these functions read and decode lists.
		"store.GetList":         "e4acdd658931",
		"store.processListItem": "23b918819c67",
		"store.watchContext":    "a3cc938b83ff",
		// decorator.go relies on how New makes a storage of its client, transformer and decoder.
		"New":                               "19a4656bfce1",
		"defaultListErrorAggregatorFactory": "2044074eddea",
		"store.getResourceSizeEstimator":    "3133b74a1fd6",
		"store.GetCurrentResourceVersion":   "540693fc1768",
	},
	// New calls these functions.
	"pkg/storage/etcd3/corrupt_obj_deleter.go": {
		"corruptObjErrAggregatorFactory": "4850edc511a6",
	},
	"pkg/storage/etcd3/lease_manager.go": {
		"newDefaultLeaseManager": "3805b9fc4620",
	},
	// dryrun.go relies on how these functions handle dry runs.
	"pkg/registry/generic/registry/dryrun.go": {
		"DryRunnableStorage.Create":           "b8f1a8810934",
		"DryRunnableStorage.Delete":           "d17ad710f8a4",
		"DryRunnableStorage.GuaranteedUpdate": "40a1b5613b08",
	},
}

func TestUpstreamFunctions(t *testing.T) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/apiserver").Output()
	require.NoError(t, err)
	for file, functions := range upstream {
		hashes := hashFunctions(t, filepath.Join(strings.TrimSpace(string(out)), file))
		for name, want := range functions {
			assert.Equal(t, want, hashes[name], "%s of %s has changed; see CONTRIBUTING.md, Upgrade Kubernetes", name, file)
		}
	}
}

// hashFunctions returns the hashes of the functions of a file, by name: of function declarations,
// methods and variables.
func hashFunctions(t *testing.T, file string) map[string]string {
	fset := token.NewFileSet()
	parsed, err := parser.ParseFile(fset, file, nil, parser.SkipObjectResolution)
	require.NoError(t, err)
	hashes := map[string]string{}
	add := func(name string, node ast.Node) {
		var source bytes.Buffer
		require.NoError(t, printer.Fprint(&source, fset, node))
		hashes[name] = fmt.Sprintf("%.6x", sha256.Sum256(source.Bytes()))
	}
	for _, decl := range parsed.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			name := decl.Name.Name
			if decl.Recv != nil {
				receiver := decl.Recv.List[0].Type
				if star, ok := receiver.(*ast.StarExpr); ok {
					receiver = star.X
				}
				name = fmt.Sprint(receiver) + "." + name
			}
			add(name, decl)
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				if value, ok := spec.(*ast.ValueSpec); ok {
					add(value.Names[0].Name, value)
				}
			}
		}
	}
	return hashes
}
