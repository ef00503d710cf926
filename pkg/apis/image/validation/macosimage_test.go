package validation

import (
	"encoding/base64"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"oras.land/oras-go/v2/registry"

	"macrack.io/macrack/pkg/apis/image"
	"macrack.io/macrack/pkg/apis/internal/check/checktest"
	"macrack.io/macrack/pkg/apis/scalar"
)

const sha = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func validImage() *image.MacOSImage {
	return &image.MacOSImage{
		ObjectMeta: metav1.ObjectMeta{Name: "macos-26.1-xcode-26.2", ResourceVersion: "1"},
		Spec: image.MacOSImageSpec{
			Contents: []image.ImageContent{
				{Name: image.ContentMacOS, Version: "26.1", Build: "25B78"},
				{Name: image.ContentXcode, Version: "26.2-beta3", Build: "17C5038g"},
				{Name: image.ContentGuestAgent, Version: "0.4.0"},
			},
			Source:        image.ImageSource{Reference: "registry.example.com/macos/26:macos-26.1-xcode-26.2-beta3", Digest: sha},
			DiskSize:      scalar.MustParse("60Gi"),
			HardwareModel: base64.StdEncoding.EncodeToString([]byte("model")),
			PullSecretRef: &image.SecretReference{Namespace: "macrack-system", Name: "registry"},
		},
		Status: image.MacOSImageStatus{Phase: image.MacOSImagePending},
	}
}

func TestValidateMacOSImage(t *testing.T) {
	contents := func(change func(c []image.ImageContent) []image.ImageContent) func(*image.MacOSImageSpec) {
		return func(s *image.MacOSImageSpec) {
			s.Source.Reference = "registry.example.com/macos"
			s.Contents = change(s.Contents)
		}
	}
	add := func(name, version, build string) func(*image.MacOSImageSpec) {
		return contents(func(c []image.ImageContent) []image.ImageContent {
			return append(c, image.ImageContent{Name: name, Version: version, Build: build})
		})
	}
	without := func(i int) func(*image.MacOSImageSpec) {
		return contents(func(c []image.ImageContent) []image.ImageContent { return slices.Delete(c, i, i+1) })
	}
	versioned := func(version string) func(*image.MacOSImageSpec) {
		return contents(func(c []image.ImageContent) []image.ImageContent { c[0].Version = version; return c })
	}
	built := func(build string) func(*image.MacOSImageSpec) {
		return contents(func(c []image.ImageContent) []image.ImageContent { c[0].Build = build; return c })
	}
	from := func(reference string) func(*image.MacOSImageSpec) {
		return func(s *image.MacOSImageSpec) { s.Source.Reference = reference }
	}
	tests := map[string]struct {
		change func(*image.MacOSImageSpec)
		want   []string
	}{
		"valid":               {func(*image.MacOSImageSpec) {}, nil},
		"no Xcode":            {without(1), nil},
		"no macOS":            {without(0), []string{"spec.contents: Required value: an image has macOS exactly once"}},
		"no guest agent":      {without(2), []string{"spec.contents: Required value: an image has guest-agent exactly once"}},
		"nothing":             {contents(func([]image.ImageContent) []image.ImageContent { return nil }), []string{"macOS exactly once", "guest-agent exactly once"}},
		"second Xcode":        {add("Xcode", "16.4", ""), []string{"spec.contents[3].name: Forbidden: a second Xcode: an image has one Xcode"}},
		"second macOS":        {add("macOS", "15.0", ""), []string{"spec.contents[3].name: Forbidden: a second macOS"}},
		"runner":              {add("actions-runner", "2.300.0", ""), []string{`spec.contents[3].name: Forbidden: "actions-runner" may not be in an image`}},
		"tenant":              {add("acme-tools", "1.0", ""), []string{`spec.contents[3].name: Forbidden: "acme-tools" may not be in an image`}},
		"other capitals":      {add("xcode", "16.4", ""), []string{`spec.contents[3].name: Forbidden: "xcode" may not be in an image`}},
		"Cyrillic Xcode":      {add("Xсode", "16.4", ""), []string{`spec.contents[3].name: Forbidden: "X\u0441ode" may not be in an image`}},
		"Xcode and a space":   {add("Xcode ", "16.4", ""), []string{`spec.contents[3].name: Forbidden: "Xcode " may not`}},
		"17 contents":         {contents(func([]image.ImageContent) []image.ImageContent { return make([]image.ImageContent, 17) }), []string{"spec.contents: Too many"}},
		"no version":          {versioned(""), []string{"spec.contents[0].version: Required"}},
		"four numbers":        {versioned("26.1.2.3"), nil},
		"five numbers":        {versioned("26.1.2.3.4"), []string{`spec.contents[0].version: Forbidden: "26.1.2.3.4" is not a version`}},
		"beta":                {versioned("26.2-beta"), nil},
		"release candidate":   {versioned("26.2-rc2"), nil},
		"tenant in version":   {versioned("26.1-acme"), []string{`spec.contents[0].version: Forbidden: "26.1-acme" is not a version`}},
		"runner in version":   {versioned("26.1+gitlab-runner"), []string{`"26.1+gitlab-runner" is not a version`}},
		"Arabic digits":       {versioned("٢٦"), []string{`"\u0662\u0666" is not a version`}},
		"line break":          {versioned("26.1\n"), []string{`"26.1\n" is not a version`}},
		"no build":            {built(""), nil},
		"beta build":          {built("25A5306g"), nil},
		"tenant in build":     {built("acme1"), []string{`spec.contents[0].build: Forbidden: "acme1" is not a build number`}},
		"build that looks so": {built("25B78-acme"), []string{`"25B78-acme" is not a build number`}},
		"build in lower case": {built("25b78"), []string{`"25b78" is not a build number`}},
		"no tag":              {from("registry.example.com:5000/tenants/acme/macos"), nil},
		"localhost":           {from("localhost/macos"), nil},
		"no reference":        {from(""), []string{"spec.source.reference: Required"}},
		"long reference":      {from("registry.example.com/" + strings.Repeat("a", 512)), []string{"spec.source.reference: Too long"}},
		"no registry":         {from("macos/26:macos"), []string{"spec.source.reference: Invalid value: \"macos/26:macos\": must be an OCI reference with its registry"}},
		"no repository":       {from("registry.example.com"), []string{"must be an OCI reference"}},
		"scheme":              {from("https://registry.example.com/macos"), []string{"must be an OCI reference"}},
		"capitals":            {from("registry.example.com/MacOS"), []string{"must be an OCI reference"}},
		"empty tag":           {from("registry.example.com/macos:"), []string{"has an empty tag"}},
		"digest":              {from("registry.example.com/macos@" + sha), []string{"must have no digest"}},
		"tag and digest":      {from("registry.example.com/macos:acme@" + sha), []string{"must have no digest"}},
		"tenant in tag":       {from("registry.example.com/macos:26.1-acme"), []string{`spec.source.reference: Forbidden: "acme" in the tag "26.1-acme" is not in the image: a tag may have macos, 26.1, 25B78, xcode, 26.2-beta3, 17C5038g, guest-agent, 0.4.0, a date (20260801) or a revision (r2)`}},
		"Cyrillic tag":        {from("registry.example.com/macos:xсode"), []string{"must be an OCI reference"}},
		"no digest":           {func(s *image.MacOSImageSpec) { s.Source.Digest = "" }, []string{"spec.source.digest: Required"}},
		"MD5":                 {func(s *image.MacOSImageSpec) { s.Source.Digest = "md5:0123" }, []string{"spec.source.digest: Invalid"}},
		"no disk":             {func(s *image.MacOSImageSpec) { s.DiskSize = scalar.Quantity{} }, []string{"spec.diskSize: Required value: must be 1Mi to 1Pi"}},
		"own identity":        {func(s *image.MacOSImageSpec) { s.Identity = image.ImageIdentityFromImage }, nil},
		"generated identity":  {func(s *image.MacOSImageSpec) { s.Identity = image.ImageIdentityGenerated }, nil},
		"another identity":    {func(s *image.MacOSImageSpec) { s.Identity = "Copied" }, []string{"spec.identity: Unsupported"}},
		"hardware model":      {func(s *image.MacOSImageSpec) { s.HardwareModel = "Mac16,10" }, []string{"spec.hardwareModel: Invalid"}},
		"secret of none":      {func(s *image.MacOSImageSpec) { s.PullSecretRef = &image.SecretReference{} }, []string{"spec.pullSecretRef.namespace: Required", "spec.pullSecretRef.name: Required"}},
		"no secret":           {func(s *image.MacOSImageSpec) { s.PullSecretRef = nil }, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			i := validImage()
			tt.change(&i.Spec)
			checktest.Errors(t, tt.want, ValidateMacOSImage(i))
		})
	}
}

func TestForeignInTag(t *testing.T) {
	allowed := []string{
		"", "26", "26.1", "26.2", "26.2-beta3", "macos", "macOS-26.1", "macos26.1", "xcode-26", "Xcode-26.2-beta3", "xcode26.2_beta3", "macos-26.1_xcode-26.2",
		"26.1-25B78", "25b78", "macos-25B78-xcode-17C5038g", "guest-agent-0.4.0", "macos-26.1-guest-agent-0.4", "26.1-20260801", "26.1-r2", "xcode",
	}
	for _, tag := range allowed {
		assert.Empty(t, foreignInTag(tag, validImage().Spec.Contents), tag)
	}
	refused := map[string]string{
		"acme":                  "acme",
		"latest":                "latest",
		"acme-ci":               "acme",
		"macos-26.1-acme":       "acme",
		"gitlab-runner":         "gitlab",
		"xcode26.1acme":         "xcode26.1acme",
		"26.1acme":              "26.1acme",
		"acme26.1":              "acme26.1",
		"macosacme":             "macosacme",
		"macos.acme":            "macos.acme",
		"m4c0s":                 "m4c0s",
		"a_c_m_e":               "a",
		"xcode-16.4":            "16.4",
		"macos-27":              "27",
		"26.1.acme":             "26.1.acme",
		"1337":                  "1337",
		"20261301":              "20261301",
		"racme":                 "racme",
		"r1234":                 "r1234",
		"26.":                   "26.",
		"26.1-beta":             "beta",
		"v0.4.0":                "v0.4.0",
		"tahoe":                 "tahoe",
		"runner-macos-26.1":     "runner",
		"macos-26.1-xcode-r2d2": "r2d2",
	}
	for tag, part := range refused {
		assert.Equal(t, part, foreignInTag(tag, validImage().Spec.Contents), tag)
	}
	plain := validImage().Spec.Contents[:1]
	assert.Equal(t, "xcode", foreignInTag("macos-26.1-xcode", plain), "the image has no Xcode")
	assert.Empty(t, foreignInTag(exampleTag(validImage().Spec.Contents), validImage().Spec.Contents), "the tag that an error proposes")
}

func TestValidateMacOSImageUpdate(t *testing.T) {
	i := validImage()
	i.Spec.DiskSize = scalar.MustParse("61440Mi")
	i.Labels = map[string]string{"a": "b"}
	ready := validImage()
	ready.Status.Phase = image.MacOSImageReady
	checktest.Errors(t, nil, ValidateMacOSImageUpdate(i, ready))

	i.Spec.Contents[1].Version = "26.3"
	checktest.Errors(t, []string{"spec.contents[1].version: Forbidden: field is immutable; the image is Ready: a new macOS or Xcode is a new MacOSImage"}, ValidateMacOSImageUpdate(i, ready))

	i.Spec.Source.Reference = "registry.example.com/macos"
	checktest.Errors(t, nil, ValidateMacOSImageUpdate(i, validImage()))
	i.Spec.Contents[0].Name = "Linux"
	checktest.Errors(t, []string{`"Linux" may not be in an image`, "macOS exactly once"}, ValidateMacOSImageUpdate(i, validImage()))
}

func TestValidateMacOSImageStatusUpdate(t *testing.T) {
	ready := image.MacOSImageStatus{Phase: image.MacOSImageReady, Digest: sha, SizeBytes: 1 << 30, ReplicatedOn: []string{"C07DR00AQ6NV"}}
	tests := map[string]struct {
		old    image.MacOSImageStatus
		change func(*image.MacOSImageStatus)
		want   []string
	}{
		"ready":           {image.MacOSImageStatus{Phase: image.MacOSImagePending}, func(s *image.MacOSImageStatus) { *s = ready }, nil},
		"failed":          {image.MacOSImageStatus{Phase: image.MacOSImagePending}, func(s *image.MacOSImageStatus) { s.Phase, s.Message = image.MacOSImageFailed, "no such digest" }, nil},
		"ready after all": {image.MacOSImageStatus{Phase: image.MacOSImageFailed}, func(s *image.MacOSImageStatus) { *s = ready }, nil},
		"ready condition": {image.MacOSImageStatus{Phase: image.MacOSImagePending}, func(s *image.MacOSImageStatus) { *s = ready; s.Conditions = readyCondition(metav1.ConditionTrue) }, nil},
		"another spec": {image.MacOSImageStatus{Phase: image.MacOSImagePending}, func(s *image.MacOSImageStatus) {
			*s = ready
			s.Conditions = readyCondition(metav1.ConditionTrue)
			s.Conditions[0].ObservedGeneration = 7
		}, []string{"status.phase: Forbidden"}},
		"pending ready": {image.MacOSImageStatus{Phase: image.MacOSImagePending}, func(s *image.MacOSImageStatus) { s.Conditions = readyCondition(metav1.ConditionTrue) }, []string{"status.conditions: Forbidden"}},
		"pending not":   {image.MacOSImageStatus{Phase: image.MacOSImagePending}, func(s *image.MacOSImageStatus) { s.Conditions = readyCondition(metav1.ConditionFalse) }, nil},
		"condition twice": {image.MacOSImageStatus{Phase: image.MacOSImagePending}, func(s *image.MacOSImageStatus) {
			s.Conditions = append(readyCondition(metav1.ConditionFalse), readyCondition(metav1.ConditionFalse)...)
		}, []string{"status.conditions[1]: Duplicate"}},
		"replicated":      {ready, func(s *image.MacOSImageStatus) { s.ReplicatedOn = append(s.ReplicatedOn, "C07DR00AQ6NW") }, nil},
		"no longer ready": {ready, func(s *image.MacOSImageStatus) { s.Phase = image.MacOSImagePending }, []string{"status.phase: Forbidden: Ready is final"}},
		"phase":           {ready, func(s *image.MacOSImageStatus) { s.Phase = "Done" }, []string{"status.phase: Unsupported", "status.phase: Forbidden"}},
		"another digest":  {ready, func(s *image.MacOSImageStatus) { s.Digest = strings.Replace(sha, "0", "1", 1) }, []string{"status.digest: Invalid value: \"sha256:1123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\": must be spec.source.digest"}},
		"no digest":       {ready, func(s *image.MacOSImageStatus) { s.Digest = "" }, []string{"status.digest: Invalid"}},
		"negative size":   {ready, func(s *image.MacOSImageStatus) { s.SizeBytes = -1 }, []string{"status.sizeBytes: Invalid"}},
		"twice on a Mac":  {ready, func(s *image.MacOSImageStatus) { s.ReplicatedOn = append(s.ReplicatedOn, "C07DR00AQ6NV") }, []string{"status.replicatedOn[1]: Duplicate"}},
		"on no Mac":       {ready, func(s *image.MacOSImageStatus) { s.ReplicatedOn[0] = "" }, []string{"status.replicatedOn[0]: Required"}},
		"on 10001 Macs":   {ready, func(s *image.MacOSImageStatus) { s.ReplicatedOn = make([]string, 10001) }, []string{"status.replicatedOn: Too many"}},
		"long message":    {ready, func(s *image.MacOSImageStatus) { s.Message = strings.Repeat("m", 32<<10+1) }, []string{"status.message: Too long"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			old := validImage()
			tt.old.DeepCopyInto(&old.Status)
			i := old.DeepCopy()
			tt.change(&i.Status)
			checktest.Errors(t, tt.want, ValidateMacOSImageStatusUpdate(i, old))
		})
	}
}

// FuzzValidateReference looks for a valid reference with a tag that has a word which the image does
// not have.
func FuzzValidateReference(f *testing.F) {
	for _, tag := range []string{"macos-26.1-xcode-26.2-beta3", "25B78", "guest-agent-0.4.0", "20260801", "r2", "acme-ci", "26.1_acme"} {
		f.Add("registry.example.com/macos/26:" + tag)
	}
	f.Add("registry.example.com/macos@" + sha)
	letters := regexp.MustCompile(`\pL+`)
	words := []string{"macos", "xcode", "guest", "agent", "beta", "b", "c", "g", "r"}
	f.Fuzz(func(t *testing.T, reference string) {
		if len(validateReference(reference, validImage().Spec.Contents, nil)) > 0 {
			return
		}
		parsed, err := registry.ParseReference(reference)
		if err != nil {
			t.Fatalf("%q is valid: %v", reference, err)
		}
		for _, word := range letters.FindAllString(parsed.Reference, -1) {
			if !slices.Contains(words, strings.ToLower(word)) {
				t.Errorf("%q is valid, and says %q", reference, word)
			}
		}
	})
}

func readyCondition(status metav1.ConditionStatus) []metav1.Condition {
	return []metav1.Condition{{Type: image.MacOSImageReadyCondition, Status: status, Reason: "Verified", LastTransitionTime: metav1.Unix(1, 0)}}
}
