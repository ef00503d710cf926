package check

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/api/resource"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"macrack.io/macrack/pkg/apis/internal/check/checktest"
	"macrack.io/macrack/pkg/apis/scalar"
)

var path = field.NewPath("f")

func TestNewMeta(t *testing.T) {
	tests := map[string]struct {
		meta metav1.ObjectMeta
		own  []string
		want []string
	}{
		"valid":             {meta: metav1.ObjectMeta{Name: "m1", Finalizers: []string{"example.com/x"}}},
		"generated name":    {meta: metav1.ObjectMeta{Name: "m-abc", GenerateName: "m-"}},
		"no name":           {meta: metav1.ObjectMeta{}, want: []string{"metadata.name: Required"}},
		"namespace":         {meta: metav1.ObjectMeta{Name: "m1", Namespace: "acme"}, want: []string{"metadata.namespace: Forbidden"}},
		"bad name":          {meta: metav1.ObjectMeta{Name: "M1"}, want: []string{"metadata.name: Invalid"}},
		"forged finalizer":  {meta: metav1.ObjectMeta{Name: "m1", Finalizers: []string{"macrack.io/floor"}}, want: []string{"only the server adds finalizers"}},
		"subdomain of ours": {meta: metav1.ObjectMeta{Name: "m1", Finalizers: []string{"rack.macrack.io/x"}}, want: []string{"only the server adds finalizers"}},
		"another's domain":  {meta: metav1.ObjectMeta{Name: "m1", Finalizers: []string{"notmacrack.io/x"}}},
		"own finalizer":     {meta: metav1.ObjectMeta{Name: "m1", Finalizers: []string{"macrack.io/vm"}}, own: []string{"macrack.io/vm"}},
		"long name":         {meta: metav1.ObjectMeta{Name: strings.Repeat("a", 1<<20)}, want: []string{"metadata.name: Too long"}},
		"long prefix":       {meta: metav1.ObjectMeta{Name: "a", GenerateName: strings.Repeat("a", 1<<20)}, want: []string{"metadata.generateName: Too long"}},
		"long annotation":   {meta: metav1.ObjectMeta{Name: "m1", Annotations: map[string]string{"a": strings.Repeat("a", 1<<20)}}, want: []string{"metadata.annotations: Too long"}},
		"many labels":       {meta: metav1.ObjectMeta{Name: "m1", Labels: labels(1000)}, want: []string{"metadata.labels: Too long: may not be more than 65536 bytes"}},
		"many annotations":  {meta: metav1.ObjectMeta{Name: "m1", Annotations: labels(1000)}, want: []string{"metadata.annotations: Too long: may not be more than 65536 bytes"}},
		"short annotations": {meta: metav1.ObjectMeta{Name: "m1", Annotations: shortEntries(8 << 10)}, want: []string{"metadata.annotations: Too long: may not be more than 65536 bytes"}},
		"long owner":        {meta: metav1.ObjectMeta{Name: "m1", OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: strings.Repeat("c", 16<<10), UID: "u"}}}, want: []string{"metadata.ownerReferences: Too long: may not be more than 16384 bytes"}},
		"long self link":    {meta: metav1.ObjectMeta{Name: "m1", SelfLink: strings.Repeat("a", 1<<20)}, want: []string{"metadata.selfLink: Too long"}}, //nolint:staticcheck // deprecated, and still stored
		"many finalizers":   {meta: metav1.ObjectMeta{Name: "m1", Finalizers: sortedKeys(labels(33))}, want: []string{"metadata.finalizers: Too many"}},
		"many owners":       {meta: metav1.ObjectMeta{Name: "m1", OwnerReferences: owners(17)}, want: []string{"metadata.ownerReferences: Too many"}},
		"long label":        {meta: metav1.ObjectMeta{Name: "m1", Labels: map[string]string{"a": strings.Repeat("a", 64)}}, want: []string{"metadata.labels: Invalid"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			errs := NewMeta(&tt.meta, false, apivalidation.NameIsDNSSubdomain, tt.own...)
			checktest.Errors(t, tt.want, errs)
			for _, err := range errs {
				assert.Less(t, len(err.Error()), 4096, "an error does not repeat what is far too long")
			}
		})
	}
}

// labels returns labels of a hundred bytes each.
func labels(n int) map[string]string {
	labels := map[string]string{}
	for i := range n {
		labels[fmt.Sprintf("example.com/%028d", i)] = strings.Repeat("a", 60)
	}
	return labels
}

// shortEntries returns a map of entries that are larger as stored than their keys and values.
func shortEntries(n int) map[string]string {
	m := map[string]string{}
	for i := range n {
		m[strconv.FormatInt(int64(i), 36)] = ""
	}
	return m
}

func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }

func owners(n int) []metav1.OwnerReference {
	var owners []metav1.OwnerReference
	for i := range n {
		owners = append(owners, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "c", UID: types.UID(fmt.Sprint(i))})
	}
	return owners
}

func TestUpdatedMeta(t *testing.T) {
	old := metav1.ObjectMeta{Name: "m1", ResourceVersion: "1", Finalizers: []string{"macrack.io/vm"}}
	kept := *old.DeepCopy()
	kept.Finalizers = append(kept.Finalizers, "example.com/x")
	checktest.Errors(t, nil, UpdatedMeta(&kept, &old))

	forged := *old.DeepCopy()
	forged.Finalizers = append(forged.Finalizers, "macrack.io/floor")
	checktest.Errors(t, []string{`metadata.finalizers[1]: Forbidden: "macrack.io/floor"`}, UpdatedMeta(&forged, &old))

	renamed := *old.DeepCopy()
	renamed.UID = "other"
	checktest.Errors(t, []string{"metadata.uid"}, UpdatedMeta(&renamed, &old))

	large := *old.DeepCopy()
	large.Labels = labels(1000)
	checktest.Errors(t, []string{"metadata.labels: Too long"}, UpdatedMeta(&large, &old))
	checktest.Errors(t, nil, UpdatedMeta(&large, &large))

	managed := *old.DeepCopy()
	managed.ManagedFields = slices.Repeat([]metav1.ManagedFieldsEntry{{Manager: "m", Operation: metav1.ManagedFieldsOperationApply, FieldsType: "FieldsV1"}}, 257)
	checktest.Errors(t, []string{"metadata.managedFields: Too many: 257: must have at most 256 items"}, UpdatedMeta(&managed, &old))
	checktest.Errors(t, nil, UpdatedMeta(&managed, &managed))

	long := *old.DeepCopy()
	long.GenerateName = strings.Repeat("a", 1<<20)
	checktest.Errors(t, []string{"metadata.generateName: Too long"}, UpdatedMeta(&long, &old))
	checktest.Errors(t, nil, UpdatedMeta(&long, &long))
}

func conditions(n, message int) []metav1.Condition {
	var conditions []metav1.Condition
	for i := range n {
		conditions = append(conditions, metav1.Condition{
			Type: fmt.Sprintf("C%d", i), Status: metav1.ConditionTrue, Reason: "R", Message: strings.Repeat("m", message), LastTransitionTime: metav1.NewTime(time.Unix(1, 0)),
		})
	}
	return conditions
}

func TestValues(t *testing.T) {
	q, written := resource.MustParse, scalar.MustParse
	d := scalar.NewDuration
	sha := "sha256:" + strings.Repeat("0a", 32)
	tests := map[string]struct {
		errs field.ErrorList
		want []string
	}{
		"name":                     {Name("m4-pro.large", path), nil},
		"no name":                  {Name("", path), []string{"Required"}},
		"long name":                {Name(strings.Repeat("a", 254), path), []string{"Too long"}},
		"label":                    {Label("m4-pro", path), nil},
		"label with a dot":         {Label("m4.pro", path), []string{"Invalid"}},
		"long label":               {Label(strings.Repeat("a", 64), path), []string{"Too long"}},
		"names":                    {Names([]string{"a", "b"}, 2, path), nil},
		"a name twice":             {Names([]string{"a", "a"}, 2, path), []string{"f[1]: Duplicate"}},
		"too many names":           {Names([]string{"a", "b", "c"}, 2, path), []string{"Too many: 3: must have at most 2"}},
		"serial number":            {SerialNumber("C07DR00AQ6NV", path), nil},
		"no serial number":         {SerialNumber("", path), []string{"Required"}},
		"lower-case serial number": {SerialNumber("c07dr00aq6nv", path), []string{"4 to 20 capital letters"}},
		"Cyrillic serial number":   {SerialNumber("С07DR00AQ6NV", path), []string{"4 to 20 capital letters"}},
		"serial number with line":  {SerialNumber("C07DR00AQ6NV\n", path), []string{"4 to 20 capital letters"}},
		"long serial number":       {SerialNumber(strings.Repeat("A", 21), path), []string{"Too long"}},
		"digest":                   {Digest(sha, path), nil},
		"upper-case digest":        {Digest(strings.ToUpper(sha), path), []string{"64 hexadecimal digits"}},
		"short digest":             {Digest(sha[:70], path), []string{"64 hexadecimal digits"}},
		"long digest":              {Digest(sha+"0", path), []string{"Too long"}},
		"no digest":                {Digest("", path), []string{"Required"}},
		"text":                     {Text("Größe ☃", 20, path), nil},
		"text of two lines":        {Text("a\nb", 10, path), []string{"printable"}},
		"invalid UTF-8":            {Text("\xff", 10, path), []string{"UTF-8"}},
		"long text":                {Text("abc", 2, path), []string{"Too long"}},
		"blank text":               {RequiredText("  ", 10, path), []string{"Required"}},
		"lines":                    {Lines("a\nb", 3, path), nil},
		"enum":                     {Enum("a", path, "a", "b"), nil},
		"not in the enum":          {Enum("c", path, "a", "b"), []string{`Unsupported value: "c": supported values: "a", "b"`}},
		"amount":                   {Amount(written("16Gi"), q("1"), q("1Ti"), path), nil},
		"zero amount":              {Amount(written("0"), q("1"), q("1Ti"), path), []string{"must be 1 to 1Ti"}},
		"negative amount":          {Amount(written("-1"), q("0"), q("1Ti"), path), []string{"must be 0 to 1Ti"}},
		"huge amount":              {Amount(written("1e30"), q("0"), q("1Ti"), path), []string{"must be 0 to 1Ti"}},
		"fraction":                 {Amount(written("1500m"), q("0"), q("1Ti"), path), []string{"whole number"}},
		"duration":                 {Duration(d(time.Minute), time.Second, time.Hour, path), nil},
		"short duration":           {Duration(d(time.Second), 2*time.Second, time.Hour, path), []string{"must be 2s to 1h"}},
		"long duration":            {Duration(d(2*time.Hour), time.Second, time.Hour, path), []string{"must be 1s to 1h"}},
		"uneven duration":          {Duration(d(1500*time.Millisecond), time.Second, time.Hour, path), []string{"whole seconds"}},
		"in range":                 {Between(int32(2), 0, 2, path), nil},
		"out of range":             {Between(int32(3), 0, 2, path), []string{"must be 0 to 2"}},
		"negative count":           {NotNegative(int64(-1), path), []string{"greater than or equal to 0"}},
		"unset amount":             {Amount(scalar.Quantity{}, q("1"), q("1Ti"), path), []string{"f: Required value: must be 1 to 1Ti"}},
		"unset, optional amount":   {Amount(scalar.Quantity{}, q("0"), q("1Ti"), path), nil},
		"amount in words":          {Amount(scalar.Quantity{Text: "a lot"}, q("0"), q("1Ti"), path), []string{`f: Invalid value: "a lot": must be an amount such as 4, 8Gi or 512G; accepted suffixes: Ki,`}},
		"duration in words":        {Duration(&scalar.Duration{Text: "3 weeks"}, time.Second, time.Hour, path), []string{`f: Invalid value: "3 weeks": must be a duration such as 90s, 24h, 1h30m or 3d; accepted units: d (days of 24 hours), h, m, s`}},
		"no duration":              {Duration(nil, time.Second, 90*24*time.Hour, path), []string{"f: Required value: must be 1s to 90d"}},
		"spec changed":             {Unchanged("a", "b", "make another", path), []string{"field is immutable; make another"}},
		"too many conditions":      {Conditions(make([]metav1.Condition, 33), make([]metav1.Condition, 32), path), []string{"Too many"}},
		"too long conditions":      {Conditions(conditions(3, 30<<10), conditions(2, 30<<10), path), []string{"f: Too long: may not be more than 65536 bytes"}},
		"as long as before":        {Conditions(conditions(3, 30<<10), conditions(3, 30<<10), path), nil},
		"as many as before":        {Conditions(conditions(33, 0), conditions(33, 0), path), nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) { checktest.Errors(t, tt.want, tt.errs) })
	}
}
