package policies

import (
	"go/ast"
	"go/constant"
	"go/types"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/tools/go/packages"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// A right is "verb group/resource", or "verb group/resource/subresource".
type rights = sets.Set[string]

// TestRolesAreTheCallsThatAreMade compares the rights of each of MacRack's programs with its calls:
// every call of a typed client and every informer in its code, and in the libraries that use its
// clients. A right without a call fails the test, and so does a call without a right.
func TestRolesAreTheCallsThatAreMade(t *testing.T) {
	const ours, client = "macrack.io/macrack/", "k8s.io/client-go/"
	calls := callsOf(t,
		ours+"pkg/controllers/...", ours+"pkg/agent/...", client+"tools/leaderelection/resourcelock",
		"k8s.io/apiserver/pkg/admission/plugin/...", "k8s.io/apiserver/pkg/admission/configuration", "k8s.io/apiserver/pkg/util/flowcontrol",
		ours+"pkg/admission/...", ours+"pkg/apiserver/...", ours+"pkg/registry/...", ours+"pkg/ledger/...",
	)
	for _, tt := range []struct {
		account string
		subject rbacv1.Subject
		code    []string
		groups  func(group string) bool
		// also has calls outside of this code, and rights other than calls; not has calls that are
		// never reached.
		also, not map[string]string
	}{
		{
			account: "macrack-controllers", subject: rbacv1.Subject{Kind: "ServiceAccount", Name: "macrack-controllers", Namespace: "macrack-system"},
			code: []string{ours + "pkg/controllers/", client + "tools/leaderelection/resourcelock"},
			also: map[string]string{
				"create /events": "tools/record", "patch /events": "tools/record: a repeated Event",
				"update instance.macrack.io/macosinstances/finalizers": "a placeholder pod's ownerReference blocks the deletion of the instance: OwnerReferencesPermissionEnforcement",
				"approve certificates.k8s.io/signers":                  "approval of a certificate: CertificateApproval",
				"bind rbac.authorization.k8s.io/clusterroles":          "an additional subject of the ClusterRoleBinding macrack-macs",
			},
		},
		{
			account: "macrack-agent", subject: rbacv1.Subject{Kind: "Group", Name: "system:nodes"},
			code: []string{ours + "pkg/agent/"},
			// The Node authorizer decides about Nodes' access to Kubernetes' own kinds.
			groups: func(group string) bool { return strings.HasSuffix(group, ".macrack.io") },
		},
		{
			account: "macrack-apiserver", subject: rbacv1.Subject{Kind: "ServiceAccount", Name: "macrack-apiserver", Namespace: "macrack-system"},
			code: []string{
				ours + "pkg/admission/", ours + "pkg/apiserver/", ours + "pkg/registry/", ours + "pkg/ledger/",
				"k8s.io/apiserver/pkg/admission/plugin/", "k8s.io/apiserver/pkg/admission/configuration", "k8s.io/apiserver/pkg/util/flowcontrol",
			},
			also: map[string]string{
				"create flowcontrol.apiserver.k8s.io/flowschemas":                 "server-side apply of an absent object",
				"create flowcontrol.apiserver.k8s.io/prioritylevelconfigurations": "server-side apply of an absent object",
			},
			groups: func(group string) bool { return !strings.HasSuffix(group, ".macrack.io") },
		},
	} {
		t.Run(tt.account, func(t *testing.T) {
			want := rights{}
			for pkg, made := range calls {
				for _, code := range tt.code {
					if strings.HasPrefix(pkg+"/", code) || pkg == code {
						want = want.Union(made)
					}
				}
			}
			if tt.groups != nil {
				for right := range want {
					group, _, _ := strings.Cut(strings.Fields(right)[1], "/")
					if !tt.groups(group) {
						want.Delete(right)
					}
				}
			}
			want.Insert(slices.Collect(maps.Keys(tt.also))...)
			want.Delete(slices.Collect(maps.Keys(tt.not))...)
			have := rightsOf(t, tt.subject)
			assert.Empty(t, sets.List(want.Difference(have)), "calls without a right: %s would be refused", tt.account)
			// A right to update a status implies the right to patch it, and the other way round.
			for right := range want {
				if status, ok := strings.CutPrefix(right, "update "); ok && strings.HasSuffix(status, "/status") {
					want.Insert("patch " + status)
				} else if status, ok := strings.CutPrefix(right, "patch "); ok && strings.HasSuffix(status, "/status") {
					want.Insert("update " + status)
				}
			}
			assert.Empty(t, sets.List(have.Difference(want)), "rights without a call: remove them from %s", tt.account)
		})
	}
}

// rightsOf returns the rights that the roles in artifacts/deploy grant to a subject.
func rightsOf(t *testing.T, subject rbacv1.Subject) rights {
	t.Helper()
	rules, bound := map[string][]rbacv1.PolicyRule{}, []string{}
	paths, err := filepath.Glob("../../artifacts/deploy/base/rbac-*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, document := range strings.Split(string(text), "\n---\n") {
			var object struct {
				rbacv1.ClusterRoleBinding
				Rules []rbacv1.PolicyRule `json:"rules"`
			}
			require.NoError(t, yaml.Unmarshal([]byte(document), &object), path)
			switch object.Kind {
			case "ClusterRole", "Role":
				rules[object.Kind+" "+object.Namespace+" "+object.Name] = object.Rules
			case "ClusterRoleBinding", "RoleBinding":
				for _, s := range object.Subjects {
					if s.Kind == subject.Kind && s.Name == subject.Name && s.Namespace == subject.Namespace {
						namespace := ""
						if object.RoleRef.Kind == "Role" {
							namespace = object.Namespace
						}
						bound = append(bound, object.RoleRef.Kind+" "+namespace+" "+object.RoleRef.Name)
					}
				}
			}
		}
	}
	have := rights{}
	for _, name := range bound {
		for _, rule := range rules[name] {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						have.Insert(verb + " " + group + "/" + resource)
					}
				}
			}
		}
	}
	require.NotEmpty(t, have)
	return have
}

// groups are the API groups by the packages of their typed clients and informers, where they
// differ.
var groups = map[string]string{
	"core": "", "policy": "policy", "rack": "rack.macrack.io", "instance": "instance.macrack.io", "image": "image.macrack.io", "config": "config.macrack.io",
	"coordination": "coordination.k8s.io", "certificates": "certificates.k8s.io", "discovery": "discovery.k8s.io",
	"authentication": "authentication.k8s.io", "authorization": "authorization.k8s.io",
	"rbac": "rbac.authorization.k8s.io", "admissionregistration": "admissionregistration.k8s.io", "flowcontrol": "flowcontrol.apiserver.k8s.io",
}

// verbs maps the methods of typed clients to verbs and subresources.
var verbs = map[string]string{
	"Get": "get", "List": "list", "Watch": "watch", "Create": "create", "Update": "update", "Patch": "patch", "Apply": "patch",
	"Delete": "delete", "DeleteCollection": "deletecollection",
	"UpdateStatus": "update /status", "ApplyStatus": "patch /status", "UpdateApproval": "update /approval",
	"Stop": "create /stop", "Bind": "create /binding", "Release": "create /release",
}

// isVersion matches the methods of an informer factory's groups.
var isVersion = regexp.MustCompile(`^V[0-9]+(alpha[0-9]+|beta[0-9]+)?$`)

// callsOf returns the calls of typed clients, and the informers, by the calling package.
func callsOf(t *testing.T, patterns ...string) map[string]rights {
	t.Helper()
	loaded, err := packages.Load(&packages.Config{
		Dir: "../..", Mode: packages.NeedName | packages.NeedFiles | packages.NeedSyntax | packages.NeedTypes | packages.NeedTypesInfo | packages.NeedImports,
	}, patterns...)
	require.NoError(t, err)
	require.Zero(t, packages.PrintErrors(loaded))
	calls := map[string]rights{}
	for _, pkg := range loaded {
		made, subresources := rights{}, map[*ast.SelectorExpr]constant.Value{}
		for _, file := range pkg.Syntax {
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.CallExpr:
					if selector, ok := n.Fun.(*ast.SelectorExpr); ok && selector.Sel.Name == "Patch" && len(n.Args) > 5 {
						subresources[selector] = pkg.TypesInfo.Types[n.Args[5]].Value
					}
					addPatch(t, made, pkg.TypesInfo, n)
				case *ast.SelectorExpr:
					if selection := pkg.TypesInfo.Selections[n]; selection != nil {
						add(t, made, selection, subresources[n])
					}
				}
				return true
			})
		}
		if made.Len() > 0 {
			calls[pkg.PkgPath] = made
		}
	}
	return calls
}

// addPatch adds the patch by a call of shared.Patch or shared.PatchStatus, whose second argument is
// a typed client.
func addPatch(t *testing.T, made rights, info *types.Info, call *ast.CallExpr) {
	function, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || len(call.Args) < 2 {
		return
	}
	called, ok := info.Uses[function.Sel].(*types.Func)
	if !ok || called.Pkg() == nil || called.Signature().Recv() != nil || !strings.HasSuffix(called.Pkg().Path(), "/controllers/shared") {
		return
	}
	subresource, ok := map[string]string{"Patch": "", "PatchStatus": "/status"}[called.Name()]
	if !ok {
		return
	}
	client, ok := types.Unalias(info.Types[call.Args[1]].Type).(*types.Named)
	require.True(t, ok, "the client of %s has no type", called.Name())
	elements := strings.Split(client.Obj().Pkg().Path(), "/")
	group, known := groups[elements[len(elements)-2]]
	require.True(t, known, client.String())
	made.Insert("patch " + group + "/" + plural(t, client) + subresource)
}

// add adds the call of a selector x.Method, if x is a typed client or an informer of a version. The
// call of a patch may have the subresource.
func add(t *testing.T, made rights, selection *types.Selection, patched constant.Value) {
	named, ok := types.Unalias(selection.Recv()).(*types.Named)
	if !ok || named.Obj().Pkg() == nil {
		return
	}
	path, method := named.Obj().Pkg().Path(), selection.Obj().Name()
	elements := strings.Split(path, "/")
	if len(elements) < 3 {
		return
	}
	group, known := groups[elements[len(elements)-2]]
	switch {
	case strings.Contains(path, "/informers/") && named.Obj().Name() == "Interface" && !isVersion.MatchString(method):
		require.True(t, known, path)
		made.Insert("list "+group+"/"+strings.ToLower(method), "watch "+group+"/"+strings.ToLower(method))
	case strings.Contains(path, "/typed/") && strings.HasSuffix(named.Obj().Name(), "Interface"):
		verb, isVerb := verbs[method]
		if !isVerb {
			return // the getter of a resource
		}
		require.True(t, known, path)
		verb, subresource, _ := strings.Cut(verb, " ")
		if patched != nil {
			subresource = "/" + constant.StringVal(patched)
		}
		made.Insert(verb + " " + group + "/" + plural(t, named) + subresource)
	}
}

// plural returns the resource of a typed client, from the method of its group that returns it.
func plural(t *testing.T, client *types.Named) string {
	t.Helper()
	scope := client.Obj().Pkg().Scope()
	for _, name := range scope.Names() {
		getter, ok := scope.Lookup(name).Type().Underlying().(*types.Interface)
		if !ok || !strings.HasSuffix(name, "Getter") || getter.NumMethods() != 1 {
			continue
		}
		method := getter.Method(0)
		if results := method.Signature().Results(); results.Len() == 1 && types.Identical(results.At(0).Type(), client) {
			return strings.ToLower(method.Name())
		}
	}
	require.FailNow(t, "no group has this client", client.String())
	return ""
}
