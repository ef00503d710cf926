package rack

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupName is the name of the group.
const GroupName = "rack.macrack.io"

// SchemeGroupVersion is the group and the internal version.
var SchemeGroupVersion = schema.GroupVersion{Group: GroupName, Version: runtime.APIVersionInternal}

var (
	// SchemeBuilder collects the functions that add the types to a scheme.
	SchemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)
	// AddToScheme adds the types to a scheme.
	AddToScheme = SchemeBuilder.AddToScheme
)

// Kind returns the group kind of a kind of the group.
func Kind(kind string) schema.GroupKind {
	return SchemeGroupVersion.WithKind(kind).GroupKind()
}

// Resource returns the group resource of a resource of the group.
func Resource(resource string) schema.GroupResource {
	return SchemeGroupVersion.WithResource(resource).GroupResource()
}

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(SchemeGroupVersion,
		&MacNodeClass{},
		&MacNodeClassList{},
		&MacNode{},
		&MacNodeList{},
		&MacNodeLease{},
		&MacNodeLeaseList{},
		&AuditRecord{},
		&AuditRecordList{},
		&ComplianceReport{},
		&ComplianceReportList{},
		&UsageReport{},
		&UsageReportList{},
		&MacNodeRestore{},
		&MacNodeLeaseBinding{},
		&MacNodeLeaseRelease{},
	)
	return nil
}
